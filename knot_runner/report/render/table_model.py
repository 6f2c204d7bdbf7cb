"""Data model of tables: cells, rows and groups of columns, as plain data for all output formats."""

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
    """One cell of a table: a mean with its interval, and the paper's number.

    Attributes:
        planned, diverged: The number of planned seeds, and the number of seeds with a diverged run.
        paper: The paper's number, if there is one.
        gap: The mean minus the paper's number; None if the two numbers are not comparable.
        text: The text that is printed instead of the mean; "" to print the mean.
        std: The standard deviation, which is printed if there is no interval.
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
        key: The key of the group, usually the name of a metric.
        title: The heading of the group.
        columns: The names of the columns, usually data sets.
        digits: The number of decimals in the cells.
        metric: The name of the metric in the cells; "" if the name equals ``key``.
        block: The title of the grid that contains this group. Groups with the same ``block`` form a grid.
        head: The common heading of all columns, instead of their names.
        signed: Whether positive numbers have a plus sign.
        paper_digits: The maximum number of decimals of the paper's numbers.
        heads: A separate heading for each column, instead of its name.
        of_global: The names of the data sets, among ``columns``, on which the global model is tested.
        variant: The variant of the metric (:func:`run_rows.variant`), if each variant has its own group.
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
        """Return the heading of a column. ``column`` is the index of the column.

        If ``head`` or ``heads`` is set, it gives the heading. Otherwise, if the only column is named
        ``ALL``, the heading is the title of the metric. In all other cases, the heading is the name of the column.
        """
        if self.head or self.heads:
            return self.head or self.heads[column]
        return METRICS[self.key].title if self.columns == ("ALL",) else self.columns[column]


#: Key of a group of columns -> the row's cells in this group, in column order.
Cells = Mapping[str, Sequence[TableCell]]


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    Attributes:
        keys: The values of the settings that identify the row, as typed on a command line. Missing settings are None.
            In a comparison, the last entries are counts, such as the number of finished runs.
        heads: The ``keys`` as printed.
        cells: The cells of the row, by group of columns.
    """

    keys: tuple[str | None, ...]
    heads: tuple[str, ...]
    cells: Cells


#: Rows, headings of the row names, groups of columns, and lines under the table.
Parts = tuple[Sequence[TableRow], Sequence[str], Sequence[ColumnGroup], Sequence[str]]


@dataclass(frozen=True)
class TableLayout:
    """Layout of a table in a terminal.

    Attributes:
        wide_heads: Whether each entry of ``TableRow.heads`` has its own column if the terminal is wide enough.
            Otherwise, the second and later entries are printed below the first entry.
        uniform: Whether all grids use the layout that the widest grid needs.
        splits: Whether a grid that is too wide is split into several grids.
    """

    wide_heads: bool = False
    uniform: bool = False
    splits: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table, which consists of one or more grids.

    A comparison (the table of ``knot-runner compare``) has a single grid without a title.

    Attributes:
        heads: The headings of the columns that identify a row.
        groups: The groups of columns with numbers.
        lines: The footnotes.
        keys: In a comparison, one entry per heading in ``heads``: the dotted key of a setting, or the name of a count.
        right: In a comparison, one flag per column in ``heads``: whether the column is aligned right.
        reading: In a comparison, the explanation of a cell.
    """

    title: str
    heads: Sequence[str]
    groups: Sequence[ColumnGroup]
    # No row is marked as best, because only claims decide which method is better.
    rows: Sequence[TableRow]
    lines: Sequence[str]
    keys: Sequence[str] = ()
    right: Sequence[bool] = ()
    reading: str = ""
    layout: TableLayout = TableLayout()

    def blocks(self) -> list[list[ColumnGroup]]:
        """Return one list of column groups per grid. For a table without groups, return ``[[]]``."""
        return list(by_key((group.block, group) for group in self.groups).values()) or [[]]

    def block_title(self, groups: Sequence[ColumnGroup]) -> str:
        """Return the title of the grid that consists of ``groups``; "" for a comparison."""
        if self.reading:
            return ""
        return groups[0].block or "; ".join(group.title for group in groups)


def display(method: str) -> str:
    """Return the title of a method, such as Sinkhorn-E; for a method without title, return its name."""
    return METHOD_TITLES.get(method, method)
