"""Summary of a sweep: number of jobs that are done, resumed, failed or diverged, with the causes."""

from __future__ import annotations

from collections.abc import Sequence

from knot_runner.composing.job import ComposedJob
from knot_runner.records import read_result
from knot_runner.sweeps.state import read_failure, status
from knot_runner.sweeps.task import Outcome

#: Exit codes of a sweep: if a job failed or diverged; if every failure is due to the user's input.
EXIT_FAILED, EXIT_USER_ERROR = 1, 2


def sweep_summary(
    jobs: Sequence[ComposedJob], found_done: int, outcomes: Sequence[Outcome], duplicates: int = 0
) -> tuple[list[str], int]:
    """Return (lines, exit code) of a sweep's summary, read from the runs' records.

    ``jobs``: the launched jobs; ``found_done``: number done before; ``outcomes``: those the launcher returned, from
    which resumed and skipped jobs are known; ``duplicates``: further jobs of the grid that are the same run as another
    (a rate control at T=1 is the T=1 run).
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
    details = [f"{found_done} were there"] if found_done else []
    went_on = sum(job.run_id in resumed for job in done)
    details += [f"{went_on} went on from a commit"] if went_on else []
    details += [f"{duplicates} more of the grid are the same runs"] if duplicates else []
    lines = [", ".join(parts) + (f" ({', '.join(details)})" if details else ""), *_grouped(causes)]
    if not failed and not diverged:
        return lines, 0
    own = [failure for job in failed if (failure := read_failure(job.folder)) and failure.kind == "user"]
    return lines, EXIT_USER_ERROR if failed and len(own) == len(failed) and not diverged else EXIT_FAILED


def _divergence(job: ComposedJob) -> str:
    """Round and client of a divergence, from the run's last note."""
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
    """One line per distinct cause, from (title, cause) of each job: an error common to a grid is printed once."""
    titles_by_cause: dict[str, list[str]] = {}
    for title, text in causes:
        titles_by_cause.setdefault(text, []).append(title)
    more = {text: f" and {len(titles) - 1} more" if len(titles) > 1 else "" for text, titles in titles_by_cause.items()}
    return [f"  {titles[0]}{more[text]}: {text}" for text, titles in titles_by_cause.items()]
