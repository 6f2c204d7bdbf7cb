"""A table as a page shows it: grids of heads and cells, every text as printed elsewhere, nothing escaped yet."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from knot_runner.report.render import table_csv
from knot_runner.report.table_model import ColumnGroup, ResultTable, TableCell, TableRow, block_title
from knot_runner.report.text import caption, half_text, paper_text, value_text


@dataclass(frozen=True)
class CellView:
    """A cell as printed; ``half`` and ``paper`` are "" where there is none; ``part``: finished runs of those planned,
    where some are missing."""

    value: str
    half: str
    paper: str
    part: str


@dataclass(frozen=True)
class GridView:
    """One grid of a table. ``heads``: names of the first columns; ``columns``: (name, role) of the others."""

    title: str
    heads: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[tuple[str, ...], tuple[CellView, ...]], ...]


@dataclass(frozen=True)
class TableView:
    """A table: its grids, how to read a cell, the lines below, and its numbers as a ``data:`` address of CSV."""

    title: str
    grids: tuple[GridView, ...]
    caption: str
    lines: tuple[str, ...]
    csv: str


def view_table(table: ResultTable) -> TableView:
    """``table`` as a page shows it."""
    grids = tuple(_grid(table, groups) for groups in table.blocks())
    return TableView(table.title, grids, caption(table), table.lines, csv_address(table_csv(table)))


def csv_address(text: str) -> str:
    """A ``data:`` address that a browser saves as a file."""
    return "data:text/csv;charset=utf-8;base64," + base64.b64encode(text.encode()).decode()


def _grid(table: ResultTable, groups: Sequence[ColumnGroup]) -> GridView:
    columns = [(group, i) for group in groups for i in range(len(group.columns))]
    used = [h for h in range(len(table.heads)) if h == 0 or any(row.heads[h] for row in table.rows)]

    def cells(row: TableRow) -> tuple[CellView, ...]:
        return tuple(_cell(row.cells[g.key][i], g) for g, i in columns)

    return GridView(
        block_title(groups),
        tuple(table.heads[h] for h in used),
        tuple((group.heading(i), group.roles[i]) for group, i in columns),
        tuple((tuple(row.heads[h] for h in used), cells(row)) for row in table.rows),
    )


def _cell(cell: TableCell, group: ColumnGroup) -> CellView:
    part = f"{cell.seeds} of {cell.planned}" if cell.mean is not None and 0 < cell.seeds < cell.planned else ""
    return CellView(value_text(cell, group), half_text(cell, group), paper_text(cell, group), part)
