"""Terminal output: console, lines of text, and tables in three styles; readable from 80 columns on.

Every text passes through :func:`text_line` or a column, which remove control characters.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from knot_runner.report.render.table_model import ColumnGroup, ResultTable, TableCell, block_title
from knot_runner.report.render.text import caption, cell_texts, plain, short_line

DIM = "dim"
#: Width of output that is not a terminal; wider than any table, so that none is folded inside a word.
PIPE_WIDTH = 1000
#: Width at which a grid is measured, to see whether it fits less.
WIDEST_GRID = 10_000
#: Width at which a text below a number is wrapped; no interval is as wide.
NARROW_CELL = 16
#: A row of a table; None: a line between rows, in a summary.
TerminalRow = Sequence[str | Text] | None


def output() -> Console:
    """Return a console for stdout."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def text_line(text: str, style: str = "") -> Text:
    """Return ``text`` in one line, in ``style``."""
    return Text(plain(text), style=style)


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print ``text`` as one line, which wraps in a narrow terminal."""
    console.print(text_line(text, style), soft_wrap=True)


@dataclass(frozen=True)
class TerminalColumn:
    """A column of a terminal table.

    Attributes:
        right: Whether cells align right, as for numbers.
        no_wrap: Whether cells stay on one line.
        overflow: How long cells are shortened.
        ratio: The share of the width, if the table fills the width.
    """

    head: str | Text = ""
    right: bool = False
    no_wrap: bool = False
    overflow: Literal["ellipsis", "fold"] = "ellipsis"
    style: str = ""
    ratio: int | None = None


def listing(columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow], title: str = "") -> Table:
    """Return a table of items with bold heads, or without heads if no column has one."""
    has_heads = any(column.head for column in columns)
    table = Table(title=title or None, title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=has_heads)
    return _filled(table, columns, rows)


def results_grid(
    columns: Sequence[TerminalColumn],
    rows: Iterable[TerminalRow],
    padding: tuple[int, int, int, int] = (0, 2, 0, 0),
    head_style: str = "",
) -> Table:
    """Return a table of numbers of many runs, with plain heads.

    ``padding`` is the space above, right of, below and left of the text in a cell.
    """
    return _filled(Table(box=None, padding=padding, pad_edge=False, header_style=head_style), columns, rows)


def summary_grid(columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow], title: str) -> Table:
    """Return a table of numbers of one run, titled with its name, with lines below the heads and between parts."""
    table = Table(
        title=text_line(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    return _filled(table, columns, rows)


def _filled(table: Table, columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow]) -> Table:
    for column in columns:
        table.add_column(
            _cell_text(column.head), justify="right" if column.right else "left", style=column.style,
            overflow=column.overflow, no_wrap=column.no_wrap, ratio=column.ratio,
        )  # fmt: skip
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*map(_cell_text, row))
    return table


def _cell_text(cell: str | Text) -> Text:
    return text_line(cell) if isinstance(cell, str) else cell


def fits(grid: Table, console: Console, options: ConsoleOptions) -> bool:
    """Return whether ``grid`` fits without truncated or folded cells."""
    return console.measure(grid, options=options.update(max_width=WIDEST_GRID)).maximum <= options.max_width


@dataclass(frozen=True)
class TerminalTable:
    """Rich renderable of a table for any width: mean and interval next to or below each other."""

    table: ResultTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        yield text_line(table.title, "bold")
        blocks = table.blocks()
        wide = [_grid(table, groups, stacked=False) for groups in blocks]
        whole = [fits(grid, console, options) for grid in wide]
        if table.layout.uniform:
            whole = [all(whole)] * len(whole)
        for groups, grid, fit in zip(blocks, wide, whole, strict=True):
            yield Text("")
            yield text_line(block_title(groups), "italic")
            if fit:
                yield grid
            elif table.layout.splits:
                for group in groups:
                    if group is not groups[0]:
                        yield Text("")
                    yield _grid(table, (group,), stacked=False)
            else:
                yield _grid(table, groups, stacked=True)
        yield Text("")
        yield Text(caption(table), style=DIM)
        yield from (text_line(text, DIM) for text in table.lines)


def _grid(table: ResultTable, groups: Sequence[ColumnGroup], stacked: bool) -> Table:
    """Return one grid."""
    head_columns = len(table.heads) if table.layout.wide_heads else 1
    lead = "\n" if any(group.of_global for group in groups) else ""  # a line above, to mark the global one
    columns = [TerminalColumn(Text(lead + head), no_wrap=not stacked) for head in table.heads[:head_columns]]
    for group in groups:
        for i, column in enumerate(group.columns):
            above = "global\n" if column in group.of_global else lead
            columns.append(TerminalColumn(Text(above + plain(group.heading(i))), right=True, no_wrap=True))
    rows = []
    for row in table.rows:
        texts = [text_line(head) for head in row.heads[:head_columns]]
        for head in filter(None, row.heads[head_columns:]):
            texts[-1].append(f"\n{plain(short_line(head))}", style=DIM)
        for group in groups:
            texts += [_cell(cell, group, stacked) for cell in row.cells[group.key]]
        rows.append(texts)
    return results_grid(columns, rows, padding=(0, 0, 0, 1))


def _cell(cell: TableCell, group: ColumnGroup, stacked: bool) -> Text:
    value, half, paper = cell_texts(cell, group)
    text = Text(value)
    if half:
        below = stacked or half.startswith(" ")  # [low, high] is wide
        text.append("\n" + "\n".join(textwrap.wrap(half.strip(), NARROW_CELL)) if below else half)
    if paper:
        text.append("\n" + paper, style=DIM)
    return text
