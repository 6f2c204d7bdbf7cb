"""The end of a sweep: how many jobs are done, went on from a commit, failed or diverged, and why, in few lines."""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.composing.job import ComposedJob
from knot_runner.records import read_result
from knot_runner.sweeps.state import read_failure, status
from knot_runner.sweeps.task import Outcome

#: Exit codes of a sweep: a job failed or diverged; or every failure is the user's input.
EXIT_FAILED, EXIT_USER_ERROR = 1, 2


def sweep_summary(
    jobs: Sequence[ComposedJob], found_done: int, outcomes: Sequence[Outcome], alike: int = 0
) -> tuple[list[str], int]:
    """(lines, exit code). ``jobs``: those that were launched; ``found_done``: how many were done before; ``alike``:
    how many more the grid has, whose runs are others' (a rate control at T=1 is the T=1 run itself).

    Read from the records; ``outcomes``, as far as a launcher returned them, say what was gone on with.
    """
    resumed = {one["run_id"] for one in outcomes if one["resumed"]}
    skipped = {one["run_id"] for one in outcomes if one["state"] == "skipped"}
    states = {job.run_id: status(job.folder) for job in jobs}
    done = [job for job in jobs if states[job.run_id] == "done"]
    diverged = [job for job in jobs if states[job.run_id] == "diverged"]
    left = [job for job in jobs if states[job.run_id] is None]
    failed = [job for job in left if job.run_id not in skipped]
    causes = [(job.title, _cause(job)) for job in failed] + [(job.title, _divergence(job)) for job in diverged]
    parts = [f"{found_done + len(done)} done", f"{len(failed)} failed"]
    parts += [f"{len(diverged)} diverged"] if diverged else []
    parts += [f"{len(left) - len(failed)} not begun (fail_fast=true)"] if len(left) > len(failed) else []
    told = [f"{found_done} were there"] if found_done else []
    went_on = sum(job.run_id in resumed for job in done)
    told += [f"{went_on} went on from a commit"] if went_on else []
    told += [f"{alike} more of the grid are the same runs"] if alike else []
    lines = [", ".join(parts) + (f" ({', '.join(told)})" if told else ""), *_grouped(causes)]
    if not failed and not diverged:
        return lines, 0
    own = [failure for job in failed if (failure := read_failure(job.folder)) and failure.kind == "user"]
    return lines, EXIT_USER_ERROR if failed and len(own) == len(failed) and not diverged else EXIT_FAILED


def _divergence(job: ComposedJob) -> str:
    """Where and with which client, as the run noted last."""
    notes = (read_result(job.folder) or {}).get("notes") or ["diverged"]
    return notes[-1]


def _cause(job: ComposedJob) -> str:
    failure = read_failure(job.folder)
    if failure is None and not job.folder.is_dir():
        return f"{job.folder}: this folder could not be made"
    if failure is None:
        return "ended without a result or a word; the same command goes on"
    where = "" if failure.kind in ("user", "disk") else f" (see {job.folder}/log.txt)"
    times = f", {failure.attempts} times in a row" if failure.attempts > 1 else ""
    return f"{failure.cause}{times}{where}"


def _grouped(causes: Sequence[tuple[str, str]]) -> list[str]:
    """A line per cause, of (title, cause) of each job: a mistake of a whole grid is said once."""
    alike: dict[str, list[str]] = {}
    for title, text in causes:
        alike.setdefault(text, []).append(title)
    more = {text: f" and {len(titles) - 1} more" if len(titles) > 1 else "" for text, titles in alike.items()}
    return [f"  {titles[0]}{more[text]}: {text}" for text, titles in alike.items()]
