"""Progress bars on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

#: The remaining time is estimated from the last this many seconds; longer than a slow round or a short job.
RATE_SECONDS = 600.0


def progress_bars(console: Console) -> Progress:
    """Return the live view of tasks with a field ``text``, shown only if ``console`` is a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        speed_estimate_period=RATE_SECONDS,
        disable=not console.is_terminal,
    )
