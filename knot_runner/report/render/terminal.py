"""A table for the terminal; readable from 80 columns on."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as Grid
from rich.text import Text

from knot_runner.report.render.table_model import ColumnGroup as Columns
from knot_runner.report.render.table_model import ResultTable, TableCell, block_title
from knot_runner.report.render.text import caption, half_text, paper_text, plain, value_text

DIM_MARK = "dim"
#: Columns of what is no terminal: no table is wider, so that none is folded inside a word.
PIPE_WIDTH = 1000


def output() -> Console:
    """A console for stdout."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


class TerminalTable:
    """Lays a table out for the width it is printed at: mean and interval side by side, or below each other."""

    def __init__(self, table: ResultTable) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(plain(self.table.title), style="bold")
        blocks = self.table.blocks()
        wide = [_grid(self.table, groups, stacked=False) for groups in blocks]
        fits = [console.measure(g, options=options.update(max_width=1000)).maximum <= options.max_width for g in wide]
        if self.table.kind == "temperatures":  # blocks of the same columns look alike
            fits = [all(fits)] * len(fits)
        for groups, grid, fit in zip(blocks, wide, fits, strict=True):
            yield Text("")
            yield Text(plain(block_title(groups)), style="italic")
            if fit:
                yield grid
            elif self.table.kind == "clustered":  # its groups below each other
                for i, group in enumerate(groups):
                    yield from [Text("")] * (i > 0)
                    yield _grid(self.table, (group,), stacked=False)
            else:
                yield _grid(self.table, groups, stacked=True)
        yield Text("")
        yield Text(caption(self.table), style=DIM_MARK)
        for line in self.table.lines:
            yield Text(plain(line), style=DIM_MARK)


def _grid(table: ResultTable, groups: Sequence[Columns], stacked: bool) -> Grid:
    """Methods: one head column, settings on its second line. Data sets, clustered runs: a column for each head."""
    grid = Grid(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="")
    own_column = len(table.heads) if table.kind in ("locals", "clustered") else 1
    lead = "\n" if any(group.of_global for group in groups) else ""  # a line above, to mark the global one
    for head in table.heads[:own_column]:
        grid.add_column(Text(lead + head), no_wrap=not stacked)
    columns = [(group, i) for group in groups for i in range(len(group.columns))]
    for group, i in columns:
        above = "global\n" if group.columns[i] in group.of_global else lead
        grid.add_column(Text(above + plain(group.heading(i))), justify="right", no_wrap=True)
    for row in table.rows:
        heads = [Text(plain(head)) for head in row.heads[:own_column]]
        heads[-1].append(
            "".join(f"\n{plain(short_line(text))}" for text in row.heads[own_column:] if text), style=DIM_MARK
        )
        cells = (_cell(row.cells[g.key][i], g, stacked) for g, i in columns)
        grid.add_row(*heads, *cells)
    return grid


def short_line(label: str) -> str:
    """Settings without their groups, for a narrow column: ``task.labels.support=onehot`` is ``support=onehot``."""
    parts = [part.partition("=") for part in label.split(", ")]
    return ", ".join(key.rpartition(".")[2] + equals + value for key, equals, value in parts)


def _cell(cell: TableCell, group: Columns, stacked: bool) -> Text:
    text = Text(value_text(cell, group))
    half, paper = half_text(cell, group), paper_text(cell, group)
    if half:
        text.append(f"\n{half.strip()}" if stacked or half.startswith(" ") else half)  # [low, high] is wide
    if paper:
        text.append("\n" + paper, style=DIM_MARK)
    return text
