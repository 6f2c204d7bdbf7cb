"""What the terminal's view of one run is made of, whatever the kind of run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from knot_runner.report.render.text import plain

DIM_TEXT = "dim"
#: A row of a summary: what it is, and its values; None: a line between rows.
SummaryRow = tuple[str, Sequence[Text | str]] | None


def run_view(
    name: str,
    result: dict[str, Any],
    heads: Sequence[str],
    rows: Iterable[SummaryRow],
    lines: Iterable[str],
    wraps: bool = False,
) -> Group:
    """A table titled ``name`` with ``rows`` under ``heads``, the first of which names the rows; ``lines`` and the run's
    notes below it, dim. ``wraps``: whether values may go on in a second line."""
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, collapse_padding=True, title_justify="left")
    grid.title = Text(plain(name), style="bold")
    grid.add_column(heads[0], no_wrap=True)
    for head in heads[1:]:
        grid.add_column(Text(plain(head)), justify="right", no_wrap=not wraps)
    for row in rows:
        if row is None:
            grid.add_section()
        else:
            grid.add_row(Text(plain(row[0])), *(Text(one) if isinstance(one, str) else one for one in row[1]))
    return Group(grid, *dim_lines(lines, result))


def bold(text: str) -> Text:
    """The value that a row is about."""
    return Text(text, style="bold")


def dim_lines(lines: Iterable[str], result: dict[str, Any]) -> list[Text]:
    """``lines`` and the run's notes, dim."""
    return [Text(plain(str(line)), style=DIM_TEXT) for line in [*lines, *result.get("notes", [])]]
