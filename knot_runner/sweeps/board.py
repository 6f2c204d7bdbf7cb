"""Progress display and summary of a sweep.

On a terminal, progress is shown live; otherwise, a line is printed when a job starts or ends. The summary states how
many jobs are done, resumed, failed or diverged, and why jobs failed. Progress is read from the folders of the runs,
so any launcher can be used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import TaskID

from knot_runner.composing.job import ComposedJob
from knot_runner.config.strict import by_key
from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.records import read_result
from knot_runner.report.render.progress import progress_bars
from knot_runner.report.render.text import duration
from knot_runner.results import RunResult
from knot_runner.sweeps.state import JobProgress, read_failure, read_progress, status
from knot_runner.sweeps.task import Outcome

#: Seconds between two refreshes; maximum number of running jobs shown.
REFRESH_SECONDS = 1.0
MAX_ROWS = 12


class Board:
    """Context manager that displays the progress of ``jobs``. A thread updates the display.

    ``finished``: the number of jobs that were finished before the sweep began.
    """

    def __init__(self, jobs: Sequence[ComposedJob], finished: int, console: Console) -> None:
        self._total = finished + len(jobs)
        self._console = console
        self._since = time.time()
        self._waiting = {job.run_id: job for job in jobs}
        self._begun: set[str] = set()
        self._failed = 0
        self._causes: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bars = progress_bars(console)
        self._all = self.bars.add_task("jobs", total=self._total, completed=finished, text="")
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Board:
        self.bars.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.look()
        self.bars.stop()

    def _watch(self) -> None:
        while not self._over.wait(REFRESH_SECONDS):
            self.look()

    def look(self) -> None:
        """Update the display from the folders of the runs."""
        for name, job in list(self._waiting.items()):
            ended = self._ended(job)
            if not ended and (progress := read_progress(job.folder)):
                self._show(job, progress)
                continue
            if name in self._bars:
                self.bars.remove_task(self._bars.pop(name))
            if ended:
                del self._waiting[name]
                self._tell(f"{job.title}: {ended}")
        for place, bar in enumerate(self._bars.values()):
            self.bars.update(bar, visible=place < MAX_ROWS)
        text = ""
        if self._failed:
            text = f"{self._failed} failed"
        self.bars.update(self._all, completed=self._total - len(self._waiting), text=text)

    def _show(self, job: ComposedJob, progress: JobProgress) -> None:
        name = job.run_id
        if name not in self._begun and not self._console.is_terminal:  # once, since slow jobs report rarely
            self._begun.add(name)
            self._tell(f"{job.title}: starts  ->  {job.folder}")
        if name not in self._bars:
            self._bars[name] = self.bars.add_task(job.title, text="")
        text = f"{progress.stage}  {progress.text}"
        self.bars.update(self._bars[name], completed=progress.done, total=progress.total, text=text)

    def _ended(self, job: ComposedJob) -> str:
        """Return the outcome of a job; "" if it has not ended."""
        if result := read_result(job.folder):
            return ended_line(result)
        failure = read_failure(job.folder)
        if failure is None or failure.at < self._since:
            return ""
        self._failed += 1
        if failure.cause in self._causes:  # print a common error only once
            return "failed with the same error"
        self._causes.add(failure.cause)
        return f"failed: {failure.cause}"

    def _tell(self, text: str) -> None:
        self.note(f"[{self._total - len(self._waiting)}/{self._total}] {text}")

    def note(self, text: str) -> None:
        """Print a line above the progress bars."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def ended_line(result: RunResult) -> str:
    """Return a short description of a finished run, such as ``done, accuracy 0.912, 12 s``."""
    if result.status != "done":
        return "diverged"
    parts = ["done"]
    for name, values in result.metrics.items():
        value = values.get("ALL")
        if name in computed_metrics() and isinstance(value, float):
            parts.append(f"{name} {value:.{METRICS[name].digits}f}")
    return ", ".join([*parts, duration(result.seconds.total or 0)])


#: Exit codes of a sweep: if a job failed or diverged; if every failure is due to the user's input.
EXIT_FAILED = 1
EXIT_USER_ERROR = 2


def sweep_summary(
    jobs: Sequence[ComposedJob], found_done: int, outcomes: Sequence[Outcome], duplicates: int = 0
) -> tuple[list[str], int]:
    """Return the lines of a sweep's summary, and the sweep's exit code.

    Args:
        jobs: The launched jobs.
        found_done: The number of jobs that were finished before the sweep began.
        outcomes: The outcomes that the launcher returned. An outcome tells whether the job was resumed or skipped.
        duplicates: The number of jobs that were not launched because they repeat another job of the grid.
    """
    returned = {outcome.run_id: outcome for outcome in outcomes}
    done = resumed = skipped = 0
    failed = []
    diverged = []
    for job in jobs:
        outcome = returned.get(job.run_id, Outcome(job.run_id, ""))
        state = status(job.folder)
        if state == "done":
            done += 1
            resumed += outcome.resumed
        elif state == "diverged":
            diverged.append(job)
        elif outcome.state == "skipped":
            skipped += 1
        else:
            failed.append(job)
    parts = [f"{found_done + done} done", f"{len(failed)} failed"]
    parts += _counts((len(diverged), "diverged"), (skipped, "not started (fail_fast=true)"))
    details = _counts(
        (found_done, "were finished before"),
        (resumed, "resumed from a commit"),
        (duplicates, "more jobs of the grid are identical to these"),
    )
    summary = ", ".join(parts)
    if details:
        summary += f" ({', '.join(details)})"
    lines = [summary, *_grouped(failed, _cause), *_grouped(diverged, _divergence)]
    if not failed and not diverged:
        return lines, 0
    kinds = {getattr(read_failure(job.folder), "kind", None) for job in failed}
    if kinds == {"user"} and not diverged:
        return lines, EXIT_USER_ERROR
    return lines, EXIT_FAILED


def _counts(*counts: tuple[int, str]) -> list[str]:
    return [f"{count} {text}" for count, text in counts if count]


def _divergence(job: ComposedJob) -> str:
    """Return the round and client in which training diverged, as text, from the run's last note."""
    result = read_result(job.folder)
    if result and result.notes:
        return result.notes[-1]
    return "diverged"


def _cause(job: ComposedJob) -> str:
    failure = read_failure(job.folder)
    if failure is None and not job.folder.is_dir():
        return f"{job.folder}: this folder could not be created"
    if failure is None:
        return "ended without a result or an error. Repeat the command to resume"
    text = failure.cause
    if failure.attempts > 1:
        text += f", {failure.attempts} times in a row"
    if failure.kind not in ("user", "disk"):
        text += f" (see {job.folder}/log.txt)"
    return text


def _grouped(jobs: Sequence[ComposedJob], cause: Callable[[ComposedJob], str]) -> Iterator[str]:
    """Yield one line per distinct ``cause`` of the ``jobs``."""
    for text, (first, *others) in by_key((cause(job), job.title) for job in jobs).items():
        if others:
            first += f" and {len(others)} more"
        yield f"  {first}: {text}"
