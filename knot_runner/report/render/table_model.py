"""What a table is made of: cells, groups of columns, rows; plain data that every renderer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from knot_runner.metrics import METRICS
from knot_runner.report.statistics.intervals import clipped_interval

#: The methods of the paper, in its order.
METHOD_NAMES = tuple(f"{loss}_{weighting}" for loss in ("entropy", "sinkhorn") for weighting in "adue")


@dataclass(frozen=True)
class TableCell:
    """One number. ``seeds``: how many values ``mean`` is over; ``half``: half the 95% interval, None under two seeds;
    ``gap``: mean - paper, None where the two do not measure the same. ``text``: printed in place of the mean.
    ``mark``: letter of the line below that says what is wrong with the paper's number. ``std``: a standard deviation,
    printed where there is no ``half``; ``paper_std``: the paper's. ``top``: the most that a share can be, where the
    interval is cut, as at 0. ``runs``: ids of the runs that it is over, where they are kept."""

    mean: float | None = None
    half: float | None = None
    seeds: int = 0
    planned: int = 0
    diverged: int = 0
    paper: float | None = None
    gap: float | None = None
    text: str = ""
    mark: str = ""
    std: float | None = None
    paper_std: float | None = None
    top: float | None = None
    runs: tuple[str, ...] = field(default=(), compare=False)

    @property
    def band(self) -> tuple[float, float] | None:
        """The 95% interval; None under two seeds."""
        if self.mean is None or self.half is None:
            return None
        return clipped_interval(self.mean - self.half, self.mean + self.half, self.top)


@dataclass(frozen=True)
class ColumnGroup:
    """Columns under one heading. ``digits`` 0 = counts. ``of_global``: columns of the global data set.

    ``metric``: what the cells are, where ``key`` is not its name. ``block``: the grid it stands in, for tables of kind
    temperatures or clustered. ``head``: heading of the columns in place of their names, or ``heads``: one for each.
    ``signed``: with a plus where above 0.
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

    def heading(self, column: int) -> str:
        """Name of a column; where ALL is the only one, that of what is measured."""
        if self.head or self.heads:
            return self.head or self.heads[column]
        return METRICS[self.key].title if self.columns == ("ALL",) else self.columns[column]


@dataclass(frozen=True)
class TableRow:
    """``keys``: what the user types; ``heads``: the same as printed; ``cells``: by group key, in column order."""

    keys: tuple[str, ...]
    heads: tuple[str, ...]
    cells: dict[str, tuple[TableCell, ...]]


#: Rows, their heads, groups of columns, and lines under the table.
Parts = tuple[list[TableRow], tuple[str, ...], tuple[ColumnGroup, ...], list[str]]


@dataclass(frozen=True)
class ResultTable:
    """``kind``: methods, grid, locals, temperatures, trace or clustered. ``lines``: what one must know to read the
    numbers. No row is marked as the best: whether one is, claims decide."""

    kind: str
    title: str
    heads: tuple[str, ...]
    groups: tuple[ColumnGroup, ...]
    rows: tuple[TableRow, ...]
    lines: tuple[str, ...]

    def blocks(self) -> list[tuple[ColumnGroup, ...]]:
        """Groups that share one grid: in a table of methods each metric has its own, in one of temperatures each case,
        in one of clustered runs each structure and weighting; else all stand side by side."""
        if self.kind == "methods":
            return [(group,) for group in self.groups]
        names = dict.fromkeys(group.block for group in self.groups)
        return [tuple(group for group in self.groups if group.block == name) for name in names]


def block_title(groups: Sequence[ColumnGroup]) -> str:
    """Heading of groups that share one grid."""
    return groups[0].block or "; ".join(group.title for group in groups)


def display(method: str) -> str:
    """The method's name as the paper spells it: ``sinkhorn_e`` is Sinkhorn-E; other names stay."""
    loss, _, weighting = method.partition("_")
    return f"{loss.title()}-{weighting.upper()}" if method in METHOD_NAMES else method
