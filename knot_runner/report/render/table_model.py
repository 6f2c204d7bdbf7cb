"""Data model of tables: cells, groups of columns and rows, as plain data for all renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knot_runner.config.plugins import Table
from knot_runner.config.strict import by_key
from knot_runner.metrics import METRICS
from knot_runner.report.statistics.intervals import Estimate

#: Method -> its title, in the order of tables; methods without one have their names.
METHOD_TITLES: Table[str] = Table("METHOD_TITLES", {}, papers="titles")


@dataclass(frozen=True)
class TableCell(Estimate):
    """One number of a table.

    Attributes:
        planned, diverged: Numbers of seeds.
        gap: mean - paper; None if they are not comparable.
        text: Printed instead of the mean.
        std: Standard deviation, printed if there is no ``half``.
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

    ``metric``: metric of the cells, if ``key`` is not its name. ``block``: the title of the grid it belongs to.
    ``head``: heading of the columns instead of their names, or ``heads``: one per column. ``signed``: positive numbers
    have a plus sign. ``variant``: of several groups of one metric, which runs are in this one
    (:func:`run_rows.variant`).
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
        """Return the name of a column; if ALL is the only one, the name of the metric."""
        if self.head or self.heads:
            return self.head or self.heads[column]
        return METRICS[self.key].title if self.columns == ("ALL",) else self.columns[column]


#: Cells of a row by key of their group, in column order.
Cells = Mapping[str, Sequence[TableCell]]


@dataclass(frozen=True)
class TableRow:
    """A row of a table.

    ``keys``: its names as typed, None for a setting that its runs lack; ``heads``: the printed names; ``cells``: its
    numbers.
    """

    keys: tuple[str | None, ...]
    heads: tuple[str, ...]
    cells: Cells


#: Rows, their heads, groups of columns, and lines under the table.
Parts = tuple[Sequence[TableRow], Sequence[str], Sequence[ColumnGroup], Sequence[str]]


@dataclass(frozen=True)
class TableLayout:
    """How a terminal shows a table.

    ``wide_heads``: each head has its own column, else further ones stand below the first; ``uniform``: all grids are
    laid out like the widest; ``splits``: groups of a grid that is too wide stand below each other.
    """

    wide_heads: bool = False
    uniform: bool = False
    splits: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table.

    ``kind``: one of TABLE_KINDS, or compare. ``lines``: footnotes. ``keys``: of a comparison, the settings below its
    ``heads``; ``reading``: how to read a cell of one, which has a single grid without a title. No row is marked as
    best: that is for claims to decide.
    """

    kind: str
    title: str
    heads: Sequence[str]
    groups: Sequence[ColumnGroup]
    rows: Sequence[TableRow]
    lines: Sequence[str]
    keys: Sequence[str] = ()
    reading: str = ""
    layout: TableLayout = TableLayout()

    def blocks(self) -> list[list[ColumnGroup]]:
        """Return the groups of columns by grid, their ``block``."""
        return list(by_key((group.block, group) for group in self.groups).values())


def block_title(groups: Sequence[ColumnGroup]) -> str:
    """Return the heading of groups that share one grid."""
    return groups[0].block or "; ".join(group.title for group in groups)


def display(method: str) -> str:
    """Return the title of a method, such as Sinkhorn-E; its name if it has none."""
    return METHOD_TITLES.get(method, method)
