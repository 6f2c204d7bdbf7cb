"""What the terminal's view of one run is made of, whatever the kind of run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from knot_runner.report.text import plain

DIM_TEXT = "dim"


def summary_grid(name: str, first: str) -> Grid:
    """An empty table titled ``name``, with its first column."""
    made = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True, title_justify="left")
    made.title = Text(plain(name), style="bold")
    made.add_column(first, no_wrap=True)
    return made


def summary_lines(lines: Iterable[str], result: dict[str, Any]) -> list[Text]:
    """``lines`` and the run's notes, dim."""
    return [Text(plain(str(line)), style=DIM_TEXT) for line in [*lines, *result.get("notes", [])]]
