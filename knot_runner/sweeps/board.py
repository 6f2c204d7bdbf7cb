"""Output of a sweep: a live view on a terminal, otherwise one line when a job starts or ends; and a final summary.

The summary has the number of jobs that are done, resumed, failed or diverged, with the causes. The output is read only
from the folders of the runs, so that it works for any launcher and machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from knot_runner.composing.job import ComposedJob
from knot_runner.config.strict import by_key
from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.records import read_result
from knot_runner.report.render.text import duration
from knot_runner.results import RunResult
from knot_runner.sweeps.state import JobProgress, read_failure, read_progress, status
from knot_runner.sweeps.task import Outcome

#: Seconds between two refreshes; maximum number of running jobs shown.
REFRESH_SECONDS, MAX_ROWS = 1.0, 12


class Board:
    """Context manager that shows the progress of ``jobs`` from a thread; ``finished``: number of jobs done before."""

    def __init__(self, jobs: Sequence[ComposedJob], finished: int, console: Console) -> None:
        self._total, self._there, self._console = len(jobs), finished, console
        self._began = time.monotonic()
        self._since = time.time()
        self._waiting = {job.run_id: job for job in jobs}
        self._at_work: dict[str, JobProgress] = {}
        self._begun: set[str] = set()
        self._failed = 0
        self._causes: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Board:
        if self._live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        if self._live:
            self._live.stop()

    def _watch(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self._look()
            if self._live:
                self._live.update(self.view(), refresh=True)

    def _look(self) -> None:
        """Update the state from the runs' folders."""
        for name, job in list(self._waiting.items()):
            self._at_work.pop(name, None)
            if ended := self._ended(job):
                del self._waiting[name]
                self._tell(f"{job.title}: {ended}")
            elif progress := read_progress(job.folder):
                self._at_work[name] = progress
                if name not in self._begun and not self._live:  # once: a slow job may have told nothing for a while
                    self._begun.add(name)
                    self._tell(f"{job.title}: starts  ->  {job.folder}")

    def _ended(self, job: ComposedJob) -> str:
        """Return the outcome of a job; "" if it has not ended."""
        if result := read_result(job.folder):
            return ended_line(result)
        failure = read_failure(job.folder)
        if failure is None or failure.at < self._since:
            return ""
        self._failed += 1
        known, self._causes = failure.cause in self._causes, self._causes | {failure.cause}
        return "failed with the same error" if known else f"failed: {failure.cause}"  # report a common error once

    def _tell(self, text: str) -> None:
        total = self._there + self._total
        self.note(f"[{total - len(self._waiting)}/{total}] {text}")

    def note(self, text: str) -> None:
        """Print a line above the live view."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def view(self) -> Group:
        """Return the live view: the sweep's progress and each running job."""
        ended = self._total - len(self._waiting)
        finished = ended + sum(job.done / max(job.total, 1) for job in self._at_work.values())
        spent = time.monotonic() - self._began
        times = duration(spent)
        if finished >= 0.05:
            times += f", about {duration(spent / finished * (self._total - finished))} left"
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{self._there + ended} of {self._there + self._total} jobs"),
            ProgressBar(total=self._total, completed=finished, width=24),
            Text(times, style="dim"),
            Text(f"{self._failed} failed" if self._failed else "", style="red"),
        )
        rows = Table.grid(padding=(0, 1))
        rows.add_column(overflow="ellipsis", no_wrap=True)
        rows.add_column(overflow="ellipsis", no_wrap=True, style="dim")
        for name, job in list(self._at_work.items())[:MAX_ROWS]:
            rows.add_row(Text(self._waiting[name].title), Text(f"{job.stage} {job.done}/{job.total}  {job.text}"))
        more = len(self._at_work) - MAX_ROWS
        return Group(head, rows, *([Text(f"and {more} more")] if more > 0 else []))


def ended_line(result: RunResult) -> str:
    """Return a short description of a finished run, such as ``done, accuracy 0.912, 12 s``."""
    if result.status != "done":
        return "diverged"
    parts = ["done"]
    for name, values in result.metrics.items():
        value = values.get("ALL") if isinstance(values, dict) else None
        if name in computed_metrics() and isinstance(value, float):
            parts.append(f"{name} {value:.{METRICS[name].digits}f}")
    return ", ".join([*parts, duration(result.seconds.total or 0)])


#: Exit codes of a sweep: if a job failed or diverged; if every failure is due to the user's input.
EXIT_FAILED, EXIT_USER_ERROR = 1, 2


def sweep_summary(
    jobs: Sequence[ComposedJob], found_done: int, outcomes: Sequence[Outcome], duplicates: int = 0
) -> tuple[list[str], int]:
    """Return (lines, exit code) of a sweep's summary, read from the runs' records.

    Args:
        jobs: The launched jobs.
        found_done: The number of jobs that were finished before.
        outcomes: Outcomes that the launcher returned. Outcomes show which jobs resumed or were skipped.
        duplicates: Number of further jobs of the grid that repeat another run (rate control at T=1 is the T=1 run).
    """
    resumed = {outcome["run_id"] for outcome in outcomes if outcome["resumed"]}
    skipped = {outcome["run_id"] for outcome in outcomes if outcome["state"] == "skipped"}
    by_state = by_key((status(job.folder), job) for job in jobs)
    done, diverged, left = (by_state.get(state, []) for state in ("done", "diverged", None))
    failed = [job for job in left if job.run_id not in skipped]
    causes = [(_cause(job), job.title) for job in failed] + [(_divergence(job), job.title) for job in diverged]
    parts = [f"{found_done + len(done)} done", f"{len(failed)} failed"]
    if diverged:
        parts.append(f"{len(diverged)} diverged")
    if len(left) > len(failed):
        parts.append(f"{len(left) - len(failed)} not started (fail_fast=true)")
    details = [f"{found_done} were finished before"] if found_done else []
    if went_on := sum(job.run_id in resumed for job in done):
        details.append(f"{went_on} resumed from a commit")
    if duplicates:
        details.append(f"{duplicates} more jobs of the grid are identical to these")
    lines = [", ".join(parts) + (f" ({', '.join(details)})" if details else ""), *_grouped(causes)]
    if not failed and not diverged:
        return lines, 0
    kinds = {getattr(read_failure(job.folder), "kind", None) for job in failed}
    return lines, EXIT_USER_ERROR if kinds == {"user"} and not diverged else EXIT_FAILED


def _divergence(job: ComposedJob) -> str:
    """Return round and client of a divergence, from the run's last note."""
    result = read_result(job.folder)
    return result.notes[-1] if result and result.notes else "diverged"


def _cause(job: ComposedJob) -> str:
    failure = read_failure(job.folder)
    if failure is None and not job.folder.is_dir():
        return f"{job.folder}: this folder could not be created"
    if failure is None:
        return "ended without a result or an error. Repeat the command to resume"
    where = "" if failure.kind in ("user", "disk") else f" (see {job.folder}/log.txt)"
    times = f", {failure.attempts} times in a row" if failure.attempts > 1 else ""
    return f"{failure.cause}{times}{where}"


def _grouped(causes: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line per distinct cause, from (cause, title) of each job."""
    lines = []
    for text, (first, *others) in by_key(causes).items():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"  {first}{more}: {text}")
    return lines
