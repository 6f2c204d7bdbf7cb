"""Progress output of a sweep: a live view of all jobs on a terminal, else one plain line when a job starts or ends.

It reads the runs' folders only, so it works the same for any launcher and machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from knot_runner.composing.job import ComposedJob
from knot_runner.metrics import METRICS
from knot_runner.records import read_result
from knot_runner.report.render.text import duration
from knot_runner.sweeps.state import JobProgress, read_failure, read_progress

#: Seconds between two refreshes; maximum number of running jobs shown.
REFRESH_SECONDS, MAX_ROWS = 1.0, 12


class Board:
    """Context manager that shows the progress of ``jobs`` from a thread of its own. ``there``: jobs done before."""

    def __init__(self, jobs: Sequence[ComposedJob], there: int, console: Console) -> None:
        self._jobs, self._there, self._console = list(jobs), there, console
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

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            ended = self._ended(job)
            if ended is not None:
                del self._waiting[name]
                self._at_work.pop(name, None)
                self._tell(f"{job.title}: {ended}")
                continue
            progress = read_progress(job.folder)
            if progress is None:
                self._at_work.pop(name, None)
            elif name not in self._begun and not self._live:  # once: a slow job may have told nothing for a while
                self._begun.add(name)
                self._tell(f"{job.title}: begins  ->  {job.folder}")
            if progress is not None:
                self._at_work[name] = progress

    def _ended(self, job: ComposedJob) -> str | None:
        result = read_result(job.folder)
        if result is not None:
            return ended_line(result)
        failure = read_failure(job.folder)
        if failure is not None and failure.at >= self._since:
            self._failed += 1
            known, self._causes = failure.cause in self._causes, self._causes | {failure.cause}
            return "failed likewise" if known else f"failed: {failure.cause}"  # report a common error once
        return None

    def _tell(self, text: str) -> None:
        done = len(self._jobs) - len(self._waiting)
        self.note(f"[{self._there + done}/{self._there + len(self._jobs)}] {text}")

    def note(self, text: str) -> None:
        """Print a line above the live view."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def view(self) -> Group:
        """The live view: the sweep's progress and each running job."""
        total, left = len(self._jobs), len(self._waiting)
        share = sum(one.done / max(one.total, 1) for one in self._at_work.values())
        finished = total - left + share
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{self._there + total - left} of {self._there + total} jobs"),
            ProgressBar(total=total, completed=finished, width=24),
            Text(self._times(finished), style="dim"),
            Text(f"{self._failed} failed" if self._failed else "", style="red"),
        )
        rows = Table.grid(padding=(0, 1))
        rows.add_column(overflow="ellipsis", no_wrap=True)
        rows.add_column(overflow="ellipsis", no_wrap=True, style="dim")
        for name, one in list(self._at_work.items())[:MAX_ROWS]:
            rows.add_row(Text(self._waiting[name].title), Text(f"{one.stage} {one.done}/{one.total}  {one.text}"))
        more = len(self._at_work) - MAX_ROWS
        return Group(head, rows, *([Text(f"and {more} more")] if more > 0 else []))

    def _times(self, finished: float) -> str:
        spent = time.monotonic() - self._began
        if finished < 0.05:
            return duration(spent)
        return f"{duration(spent)}, about {duration(spent / finished * (len(self._jobs) - finished))} left"


def ended_line(result: dict) -> str:
    """``done, accuracy 0.912, 12 s``: what one finished run came to, in few words."""
    if result["status"] != "done":
        return "diverged"
    found = []
    for name, values in result.get("metrics", {}).items():
        shown = name in METRICS and METRICS[name].function is not None
        if shown and isinstance(values, dict) and isinstance(values.get("ALL"), float):
            found.append(f"{name} {values['ALL']:.{METRICS[name].digits}f}")
    return ", ".join(["done", *found, duration(result.get("seconds", {}).get("total", 0))])
