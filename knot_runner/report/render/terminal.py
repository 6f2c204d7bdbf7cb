"""Terminal output: console, lines of text, and tables in three styles.

:func:`text_line` and :class:`TerminalColumn` replace control characters. Every text passes through one of them.
"""

from __future__ import annotations

import copy
import itertools
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from knot_runner.report.render.table_model import ColumnGroup, ResultTable, TableCell
from knot_runner.report.render.text import caption, cell_texts, plain, short_line

DIM = "dim"
#: Width of output that is not a terminal; larger than every table, so that no table is wrapped.
PIPE_WIDTH = 1000
#: Width of the console in which the full width of a grid is measured; no grid is wider.
WIDEST_GRID = 10_000
#: Width at which a text below a number is wrapped; larger than every interval.
NARROW_CELL = 16
#: Width at which the settings below a row's first head are wrapped.
SETTINGS_WIDTH = 32
#: A row of a table. In a summary, None is a line between rows.
TerminalRow = Sequence[str | Text] | None


def output() -> Console:
    """Return a console for stdout. If stdout is not a terminal, the lines of tables are not wrapped."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def text_line(text: str, style: str = "") -> Text:
    """Return ``text`` as a single line in ``style``, with ``?`` for each control character."""
    return Text(plain(text), style=style)


def dimmed(lines: Iterable[str]) -> list[Text]:
    """Return each of ``lines`` as a dimmed line."""
    return [text_line(line, DIM) for line in lines]


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print ``text`` as a single line, without inserting line breaks."""
    console.print(text_line(text, style), soft_wrap=True)


class TerminalColumn(Column):
    """A column of a terminal table. Its head is plain text, without markup.

    Args:
        head: The head of the column.
        right: Whether the cells are aligned right, as for numbers.
        **look: Further options of ``rich.table.Column``.
    """

    def __init__(self, head: str | Text = "", right: bool = False, **look: Any) -> None:
        super().__init__(_cell_text(head), justify="right" if right else "left", **look)


def listing(columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow], title: str = "") -> Table:
    """Return a table that lists items. The heads are bold. If no column has a head, the row of heads is omitted."""
    has_heads = any(column.header for column in columns)
    return _filled(columns, rows, title=title or None, box=None, padding=(0, 2, 0, 0), show_header=has_heads)


def results_grid(
    columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow], padding: tuple[int, int, int, int] = (0, 2, 0, 0)
) -> Table:
    """Return a table with the numbers of many runs. The heads are not bold.

    ``padding`` is the space around the text in a cell, in the order top, right, bottom, left.
    """
    return _filled(columns, rows, box=None, padding=padding, pad_edge=False, header_style="")


def summary_grid(columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow], title: str) -> Table:
    """Return a table with a title and the numbers of one run.

    The table has a horizontal line below the heads, and a horizontal line for each None in ``rows``.
    """
    return _filled(
        columns, rows, title=text_line(title, "bold"), box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip


def _filled(columns: Sequence[TerminalColumn], rows: Iterable[TerminalRow], **look: Any) -> Table:
    table = Table(*copy.deepcopy(list(columns)), title_justify="left", **look)  # columns store cells
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*map(_cell_text, row))
    return table


def _cell_text(cell: str | Text) -> Text:
    return text_line(cell) if isinstance(cell, str) else cell


@dataclass(frozen=True)
class TerminalTable:
    """A table that the package ``rich`` can print. The layout adapts to the width of the terminal.

    In a narrow terminal, an interval is printed below its mean instead of next to it.
    """

    table: ResultTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        layout = table.layout
        blocks = table.blocks()
        unlimited = options.update(max_width=WIDEST_GRID)

        def fits(groups: list[ColumnGroup], wide_heads: bool) -> bool:
            """Return whether a grid fits without truncated or wrapped cells."""
            return console.measure(_grid(table, groups, wide_heads), options=unlimited).maximum <= options.max_width

        wide_heads = layout.wide_heads and fits(blocks[0][:1], True)
        whole = [fits(groups, wide_heads) for groups in blocks]
        if layout.uniform:
            whole = [all(whole)] * len(whole)
        yield text_line(table.title, "bold")
        for groups, fit in zip(blocks, whole, strict=True):
            yield Text("")
            if title := table.block_title(groups):
                yield text_line(title, "italic")
            parts = [groups]
            if not fit and layout.splits:
                parts = [[]]
                for group in groups:
                    if parts[-1] and not fits([*parts[-1], group], wide_heads):
                        parts.append([])
                    parts[-1].append(group)
            for i, part in enumerate(parts):
                if i:
                    yield Text("")
                yield _grid(table, part, wide_heads, stacked=not fit and not layout.splits)
        yield Text("")
        yield from dimmed((caption(table), *table.lines))


def _grid(table: ResultTable, groups: Sequence[ColumnGroup], wide_heads: bool, stacked: bool = False) -> Table:
    """Return one grid."""
    head_columns = len(table.heads) if wide_heads else 1
    lead = "\n" if any(group.of_global for group in groups) else ""  # a line for the mark of global data sets
    columns = []
    for head, is_right in itertools.zip_longest(table.heads[:head_columns], table.right[:head_columns]):
        columns.append(TerminalColumn(Text(lead + plain(head)), bool(is_right), no_wrap=not stacked))
    for group in groups:
        for i, column in enumerate(group.columns):
            above = "global\n" if column in group.of_global else lead
            columns.append(TerminalColumn(Text(above + plain(group.heading(i))), right=True, no_wrap=True))
    rows = []
    for row in table.rows:
        texts = list(map(text_line, row.heads[:head_columns]))
        below = [short_line(head) for head in row.heads[head_columns:] if head]
        if table.keys:
            named = zip(table.heads[head_columns:], row.heads[head_columns:], strict=True)
            below = textwrap.wrap(" ".join(f"{name}={head}" for name, head in named if head), SETTINGS_WIDTH)
        for line in below:
            texts[-1].append(f"\n{plain(line)}", style=DIM)
        for group in groups:
            texts += [_cell(cell, group, stacked) for cell in row.cells[group.key]]
        rows.append(texts)
    return results_grid(columns, rows, padding=(0, 0, 0, 2 if table.keys else 1))


def _cell(cell: TableCell, group: ColumnGroup, stacked: bool) -> Text:
    value, half, paper = cell_texts(cell, group)
    if stacked or half.startswith(" "):  # [low, high] is wide
        half = "\n".join(["", *textwrap.wrap(half.strip(), NARROW_CELL)])
    if paper:
        paper = f"\n{paper}"
    return Text(value + half).append(paper, style=DIM)
