"""Building blocks of the terminal summary of a run of any kind, and the line on its costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.text import Text

from knot_runner.report.render.terminal import DIM, TerminalColumn, summary_grid, text_line
from knot_runner.report.render.text import quantity
from knot_runner.results.base import RunResult

#: A row of a summary: its name and values; None: a line between rows.
SummaryRow = tuple[str, Sequence[Text | str]] | None


def run_view(
    name: str,
    result: RunResult,
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


def dim_lines(lines: Iterable[str], result: RunResult) -> list[Text]:
    """``lines`` and the run's notes, dim."""
    return [text_line(str(text), DIM) for text in [*lines, *result.notes]]


def cost_lines(result: RunResult) -> list[str]:
    """``12.4 MB up, 12.4 MB down; 3.1 TFLOP at clients``; nothing of results without costs."""
    costs = result.costs
    if costs is None:
        return []
    text = f"{quantity(costs.bytes_up, 'B')} up, {quantity(costs.bytes_down, 'B')} down"
    places = {"clients": costs.client_flops, "server": costs.server_flops}
    known = [f"{quantity(flops, 'FLOP')} at {place}" for place, flops in places.items() if flops]
    unknown = [place for place, flops in places.items() if flops is None]
    if known:
        text += f"; {', '.join(known)}"
    if unknown:
        text += f"; FLOPs at {' and '.join(unknown)} not counted"
    reached = costs.bytes_to_target
    return [text] if reached is None else [text, f"{quantity(reached, 'B')} both ways until the target was reached"]
