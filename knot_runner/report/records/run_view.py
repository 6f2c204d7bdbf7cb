"""Building blocks of the terminal summary of a run of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from knot_runner.report.render.terminal import DIM, TerminalColumn, summary_grid, text_line

#: A row of a summary: its name and values; None: a line between rows.
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
    notes below it, dim. ``wraps``: whether values may wrap."""
    columns = [TerminalColumn(heads[0], no_wrap=True)]
    columns += [TerminalColumn(head, right=True, no_wrap=not wraps) for head in heads[1:]]
    cells = [None if row is None else (row[0], *row[1]) for row in rows]
    return Group(summary_grid(columns, cells, name), *dim_lines(lines, result))


def bold(text: str) -> Text:
    """The main value of a row, in bold."""
    return Text(text, style="bold")


def dim_lines(lines: Iterable[str], result: dict[str, Any]) -> list[Text]:
    """``lines`` and the run's notes, dim."""
    return [text_line(str(text), DIM) for text in [*lines, *result.get("notes", [])]]
