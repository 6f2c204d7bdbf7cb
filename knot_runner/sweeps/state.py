"""The states of runs and jobs, read from the folders of the runs and from locks.

``progress.json`` is replaced about once a second during a run. ``failed.json`` is kept until a later attempt succeeds.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from knot_runner import provenance
from knot_runner.composing.job import ComposedJob
from knot_runner.config.strict import build
from knot_runner.records import lock_of, read_result, read_sealed, result_problem
from knot_runner.util.errors import UserError
from knot_runner.util.files import read_json, removal, write_atomic, write_json
from knot_runner.util.processes import on_signal

#: Kind of failure. user: invalid input; disk: the disk is full or fails; error: an exception; memory: out of memory;
#: killed: by a signal; exit: the job's process exited by itself.
Kind = Literal["user", "disk", "error", "memory", "killed", "exit"]
#: Outcome of an attempt to run a job. busy: another process runs the same job; skipped: the sweep had ended.
SweepState = Literal["done", "diverged", "failed", "busy", "skipped"]
PROGRESS_FILE = "progress.json"
FAILED = "failed.json"
JOB_LOG = "log.txt"
#: Seconds between two writes of a run's progress file; age in seconds from which the file counts as stale.
HEARTBEAT_SECONDS = 1.0
FRESH_SECONDS = 60.0


@dataclass(frozen=True)
class Failure:
    """The last failure of a run.

    Attributes:
        kind: Kind of failure.
        cause: One line that describes the cause.
        attempts: Number of consecutive failures.
        at: Unix time of the failure.
    """

    kind: Kind
    cause: str
    attempts: int
    at: float


@dataclass(frozen=True)
class JobProgress:
    """Progress of a run.

    Attributes:
        stage: Name of the current stage.
        done: Number of completed steps of the stage.
        total: Number of all steps of the stage.
        text: Last status text.
        at: Unix time at which the progress was recorded.
    """

    stage: str
    done: int
    total: int
    text: str
    at: float


def read_failure(folder: Path) -> Failure | None:
    """Return the last failure of the run in ``folder``; None if no failure is recorded."""
    return _read(Failure, folder / FAILED)


def write_failure(folder: Path, kind: Kind, cause: str) -> SweepState:
    """Record a failed attempt to run a job, and return "failed".

    Only the first line of ``cause`` is recorded. If the record cannot be written, no error is raised.
    """
    attempts = 1
    if before := read_failure(folder):
        attempts += before.attempts
    failure = Failure(kind, (cause.strip().splitlines() or [kind])[0], attempts, time.time())
    with contextlib.suppress(UserError):
        write_json(folder / FAILED, asdict(failure))
    return "failed"


@removal()
def clear_failure(folder: Path) -> None:
    """Delete the record of the last failure. Call this function when an attempt has succeeded."""
    if (folder / FAILED).exists():  # on a read-only disk even an attempt to delete would raise
        (folder / FAILED).unlink(missing_ok=True)


def read_progress(folder: Path) -> JobProgress | None:
    """Return the progress of the run in ``folder``; None if no progress was written within the last minute."""
    progress = _read(JobProgress, folder / PROGRESS_FILE)
    if progress is not None and time.time() - progress.at < FRESH_SECONDS:
        return progress
    return None


def status(folder: Path) -> str | None:
    """Return ``done`` or ``diverged`` for a finished run in ``folder``; None if the folder has no complete result."""
    if result := read_result(folder):
        return result.status
    return None


@contextlib.contextmanager
def progress_file(folder: Path) -> Iterator[Callable[[str, int, int, str], None]]:
    """Yield a function that records the progress of a run in ``progress.json``. The file is deleted after the block.

    The function has the type :data:`knot_runner.pipelines.context.Progress`, and writes the file at most once per
    ``HEARTBEAT_SECONDS``.
    """
    path = folder / PROGRESS_FILE
    last = 0.0

    def watch(stage: str, done: int, total: int, text: str) -> None:
        nonlocal last
        now = time.time()
        if text == "done" or now - last < HEARTBEAT_SECONDS:
            return
        last = now
        progress = JobProgress(stage, done, total, text, now)
        with contextlib.suppress(UserError):  # disk full: the run itself reports this when it commits
            write_atomic(path, json.dumps(asdict(progress)), durable=False)

    @removal()
    def remove() -> None:
        path.unlink(missing_ok=True)

    watch("begin", 0, 1, "")
    try:
        with on_signal(remove):
            yield watch
    finally:
        remove()


def _read(kind: type[Any], path: Path) -> Any | None:
    try:
        return build(kind, read_json(path), path.name)
    except UserError:  # missing or damaged
        return None


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        standing: The state.
        text: A short explanation.
    """

    standing: Literal["done", "diverged", "different data", "damaged", "running", "failed", "stopped", "to do"]
    text: str


def state_of(job: ComposedJob, data: provenance.CurrentData) -> JobState:
    """Return the state of ``job``, determined from the job's folder and lock.

    ``data`` detects data files that have changed since the job's result was recorded.
    """
    if result := read_result(job.folder):
        changes = data.changes(job.folder, result)
        if not changes:
            return JobState(result.status, result.status)
        if changes[0].startswith(provenance.FILE_CHANGE):
            return JobState("damaged", f"damaged: {changes[0].removeprefix(provenance.FILE_CHANGE)}")
        return JobState("different data", f"run on different data: {changes[0].removeprefix(provenance.DATA_CHANGE)}")
    if progress := read_progress(job.folder):
        return JobState("running", f"running: {progress.stage} {progress.done} of {progress.total}")
    if is_locked(lock_of(job.out, job.run_id)):
        return JobState("running", "running")
    if failure := read_failure(job.folder):
        return JobState("failed", f"failed: {failure.cause}")
    if problem := result_problem(job.folder):
        return JobState("to do", problem)
    return _interrupted(job)


def _interrupted(job: ComposedJob) -> JobState:
    """Return the state of an unfinished job that no process is running.

    The job has either not started or committed a number of rounds (epochs, stages).
    """
    commit = "commit.json"
    record = read_sealed(job.folder / commit) or read_sealed(job.folder / "training" / commit)  # of clusters
    rounds = getattr(job.settings.training, "rounds", None)
    if record and rounds:
        return JobState("stopped", f"stopped in round {record['step'] + 1} of {rounds}")
    if record or (job.folder / "config.yaml").exists():
        return JobState("stopped", "stopped")
    return JobState("to do", "to do")


def is_locked(path: Path) -> bool:
    """Return whether a process on this machine holds the lock ``path``. This function does not take the lock."""
    try:
        # Trying to take the lock could block a sweep.
        number = str(path.stat().st_ino)
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and number in line.replace(":", " ").split() for line in locks)
