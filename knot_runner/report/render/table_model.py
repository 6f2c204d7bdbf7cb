"""Data model of tables: cells, groups of columns and rows, as plain data for all renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knot_runner.metrics import METRICS
from knot_runner.report.statistics.intervals import Estimate

#: The methods of the paper, in its order.
METHOD_NAMES = tuple(f"{loss}_{weighting}" for loss in ("entropy", "sinkhorn") for weighting in "adue")


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

    Attributes:
        digits: Decimals; 0 for counts.
        of_global: Columns of the global data set.
        metric: Metric of the cells, if ``key`` is not its name.
        block: The grid that it belongs to, in tables of kind temperatures or clustered.
        head: Heading of the columns instead of their names.
        heads: The same, one per column.
        signed: Whether positive numbers have a plus sign.
        variant: Of several groups of one metric, the runs in this one (:func:`run_rows.variant`).
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
class ResultTable:
    """A table.

    ``kind``: methods, grid, locals, temperatures, trace, clustered or compare. ``lines``: footnotes. ``keys``: in a
    comparison, the settings below its ``heads``. No row is marked as best, because only claims decide this.
    """

    kind: str
    title: str
    heads: Sequence[str]
    groups: Sequence[ColumnGroup]
    rows: Sequence[TableRow]
    lines: Sequence[str]
    keys: Sequence[str] = ()

    def blocks(self) -> list[list[ColumnGroup]]:
        """Return the groups of columns by grid.

        There is one grid per metric in a table of methods, per case in one of temperatures, and per structure and
        weighting for clustered runs. Other tables have a single grid.
        """
        if self.kind == "methods":
            return [[group] for group in self.groups]
        names = dict.fromkeys(group.block for group in self.groups)
        return [[group for group in self.groups if group.block == name] for name in names]


def block_title(groups: Sequence[ColumnGroup]) -> str:
    """Return the heading of groups that share one grid."""
    return groups[0].block or "; ".join(group.title for group in groups)


def display(method: str) -> str:
    """Return the method's name as the paper spells it: Sinkhorn-E for ``sinkhorn_e``; other names are unchanged."""
    loss, _, weighting = method.partition("_")
    return f"{loss.title()}-{weighting.upper()}" if method in METHOD_NAMES else method
