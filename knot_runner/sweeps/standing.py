"""State of a job before a command runs it, from its folder and lock: done, running, failed, stopped or to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from knot_runner import provenance
from knot_runner.records import read_result

if TYPE_CHECKING:
    from knot_runner.composing.job import ComposedJob

_Standing = Literal["done", "diverged", "other data", "running", "failed", "stopped", "to do"]


@dataclass(frozen=True)
class JobState:
    """A job's state and a short explanation."""

    standing: _Standing
    text: str


def state_of(job: ComposedJob, data: provenance.CurrentData | None = None) -> JobState:
    """State of ``job`` from its folder and lock. ``data``: the current data it would read, shared by a command's
    jobs."""
    from knot_runner.sweeps.state import read_failure, read_progress

    result = read_result(job.folder)
    if result is not None:
        changes = (data or provenance.CurrentData(job.settings.paths.data)).changes(result)
        if changes:
            return JobState("other data", f"made from other data: {changes[0].removeprefix(provenance.DATA_CHANGE)}")
        return JobState("diverged", "diverged") if result["status"] == "diverged" else JobState("done", "done")
    progress = read_progress(job.folder)
    if progress is not None:
        return JobState("running", f"running: {progress.stage} {progress.done} of {progress.total}")
    if is_locked(Path(job.settings.paths.out) / ".locks" / job.run_id):
        return JobState("running", "running")
    if (failure := read_failure(job.folder)) is not None:
        return JobState("failed", f"failed: {failure.cause}")
    return _begun(job) or JobState("to do", "to do")


def _begun(job: ComposedJob) -> JobState | None:
    """State of an interrupted job that can resume from its last commit, or None."""
    from knot_runner.estimate.pieces import rounds_done

    done = rounds_done(job)
    if done is not None:
        rounds = getattr(job.settings.training, "rounds", None)
        return JobState("stopped", f"stopped in round {done} of {rounds}" if rounds else "stopped")
    return JobState("stopped", "stopped") if (job.folder / "config.yaml").exists() else None


def is_locked(path: Path) -> bool:
    """Whether a process of this machine holds the lock ``path``. Does not try the lock, which could block a sweep."""
    try:
        number = str(path.stat().st_ino)
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and number in line.replace(":", " ").split() for line in locks)
