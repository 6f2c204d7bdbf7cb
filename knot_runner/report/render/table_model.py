"""Data model of tables: cells, groups of columns and rows, as plain data for all renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knot_runner.config.plugins import Table
from knot_runner.config.strict import by_key
from knot_runner.metrics import METRICS
from knot_runner.report.statistics.intervals import Estimate

#: Method -> title of the method, in the order of tables. Other methods are displayed by name.
METHOD_TITLES: Table[str] = Table("METHOD_TITLES", {}, papers="titles")


@dataclass(frozen=True)
class TableCell(Estimate):
    """One number of a table.

    Attributes:
        planned, diverged: The number of planned seeds and of diverged seeds.
        gap: The mean minus the paper's number; None if the two are not comparable.
        text: The text printed instead of the mean.
        std: The standard deviation, printed if ``half`` is None.
        paper_std: The paper's standard deviation.
    """

    planned: int = 0
    diverged: int = 0
    paper: float | None = None
    gap: float | None = None
    text: str = ""
    std: float | None = None
    paper_std: float | None = None


@dataclass(frozen=True)
class ColumnGroup:
    """Columns under one heading.

    Attributes:
        metric: The metric in the cells, if ``key`` is not its name.
        block: The title of the grid (one printed table) that contains this group.
        head: A common heading of all columns, instead of the column names.
        heads: One heading per column, instead of the column names.
        signed: Whether positive numbers have a plus sign.
        variant: The kind of runs in this group (:func:`run_rows.variant`), if the metric has several groups.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    digits: int = 3
    metric: str = ""
    block: str = ""
    head: str = ""
    signed: bool = False
    paper_digits: int = 2
    heads: tuple[str, ...] = ()
    of_global: tuple[str, ...] = ()
    variant: str | None = None

    def heading(self, column: int) -> str:
        """Return the heading of a column: the column's name, or the metric's name if ALL is the only column."""
        if self.head or self.heads:
            return self.head or self.heads[column]
        return METRICS[self.key].title if self.columns == ("ALL",) else self.columns[column]


#: Key of a group of columns -> the row's cells in this group, in column order.
Cells = Mapping[str, Sequence[TableCell]]


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        keys: The values of the settings that identify the row, as typed on a command line; None for a setting that the
            runs do not have. In a comparison, the row's numbers of runs follow.
        heads: The ``keys`` as printed.
        cells: The numbers of the row.
    """

    keys: tuple[str | None, ...]
    heads: tuple[str, ...]
    cells: Cells


#: Rows, headings of the row names, groups of columns, and lines under the table.
Parts = tuple[Sequence[TableRow], Sequence[str], Sequence[ColumnGroup], Sequence[str]]


@dataclass(frozen=True)
class TableLayout:
    """How a terminal shows a table.

    Attributes:
        wide_heads: Whether each name of a row (``TableRow.heads``) has its own column if the width allows. Otherwise,
            the other names are printed below the first name.
        uniform: Whether all grids use the layout that the widest grid needs.
        splits: Whether a grid that is too wide is split into several grids.
    """

    wide_heads: bool = False
    uniform: bool = False
    splits: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table. No row is marked as best, because only claims decide which method is better.

    Attributes:
        heads: The headings of the columns that name the rows.
        lines: The footnotes.
        keys: In a comparison, the dotted key of each setting in ``heads``, and the name of each number of runs.
        right: In a comparison, whether each column in ``heads`` contains numbers, which align right.
        reading: In a comparison, the explanation of a cell. A comparison has a single grid without a title.
    """

    title: str
    heads: Sequence[str]
    groups: Sequence[ColumnGroup]
    rows: Sequence[TableRow]
    lines: Sequence[str]
    keys: Sequence[str] = ()
    right: Sequence[bool] = ()
    reading: str = ""
    layout: TableLayout = TableLayout()

    def blocks(self) -> list[list[ColumnGroup]]:
        """Return the groups of columns of each grid (groups with the same ``block``); one empty list without groups."""
        return list(by_key((group.block, group) for group in self.groups).values()) or [[]]

    def block_title(self, groups: Sequence[ColumnGroup]) -> str:
        """Return the heading of groups that share one grid; "" for a comparison."""
        if self.reading:
            return ""
        return groups[0].block or "; ".join(group.title for group in groups)


def display(method: str) -> str:
    """Return the title of a method, such as Sinkhorn-E, or the method's name if it has no title."""
    return METHOD_TITLES.get(method, method)
