"""Progress bars on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

#: The rate is measured over this period, in seconds. The period is longer than a slow round or a short job.
RATE_SECONDS = 600.0


class _Rate(ProgressColumn):
    """The rate of a progress bar: units per second, or seconds per unit if a unit takes longer."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0
        if speed >= 1:
            return Text(f"{speed:.1f}/s")
        return Text(f"{1 / speed:.1f} s each" if speed else "")


def progress_bars(console: Console) -> Progress:
    """Return progress bars for the terminal. They are not shown if ``console`` is not a terminal.

    Each task that is added must have a field ``text``, which is printed next to its bar.
    """
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        _Rate(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        speed_estimate_period=RATE_SECONDS,
        disable=not console.is_terminal,
    )
