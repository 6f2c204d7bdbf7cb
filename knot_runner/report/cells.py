"""What a table is made of: cells, groups of columns, rows; plain data that every renderer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Metric -> title and direction.
METRICS = {
    "f1": ("macro F1", "higher"),
    "accuracy": ("accuracy", "higher"),
    "sd": ("semantic distance", "lower"),
}
#: The methods of the paper, in its order.
METHODS = tuple(f"{loss}_{weighting}" for loss in ("entropy", "sinkhorn") for weighting in "adue")


@dataclass(frozen=True)
class Cell:
    """One number. ``seeds``: how many values ``mean`` is over; ``half``: half the 95% interval, None under two seeds;
    ``gap``: mean - paper, None where the two do not measure the same."""

    mean: float | None = None
    half: float | None = None
    seeds: int = 0
    planned: int = 0
    diverged: int = 0
    paper: float | None = None
    gap: float | None = None


@dataclass(frozen=True)
class Group:
    """Columns under one heading. ``roles``: local, global or "" per column; ``digits`` 0 = counts."""

    key: str
    title: str
    columns: tuple[str, ...]
    roles: tuple[str, ...]
    better: Literal["higher", "lower"] | None
    digits: int = 3

    def heading(self, column: int) -> str:
        """Name of a column; where ALL is the only one, that of what is measured."""
        return METRICS[self.key][0] if self.columns == ("ALL",) else self.columns[column]


@dataclass(frozen=True)
class Row:
    """``keys``: what the user types; ``heads``: the same as printed; ``cells``: by group key, in column order."""

    keys: tuple[str, ...]
    heads: tuple[str, ...]
    cells: dict[str, tuple[Cell, ...]]


@dataclass(frozen=True)
class Table:
    """``kind``: methods, grid or locals. ``lines``: what one must know to read the numbers, one a line."""

    kind: str
    title: str
    heads: tuple[str, ...]
    groups: tuple[Group, ...]
    rows: tuple[Row, ...]
    lines: tuple[str, ...]

    def blocks(self) -> list[tuple[Group, ...]]:
        """Groups that share one grid: in a table of methods each metric has its own, else all stand side by side."""
        return [(group,) for group in self.groups] if self.kind == "methods" else [self.groups]

    def best(self, group: Group, column: int) -> set[int]:
        """Rows with the best mean of a column, ties at the printed digits included; none if under two have one."""
        means = {i: row.cells[group.key][column].mean for i, row in enumerate(self.rows)}
        there = {i: round(mean, group.digits) for i, mean in means.items() if mean is not None}
        if group.better is None or len(there) < 2:
            return set()
        top = max(there.values()) if group.better == "higher" else min(there.values())
        return {i for i, mean in there.items() if mean == top}


def block_title(groups: Sequence[Group]) -> str:
    """Heading of groups that share one grid."""
    return "; ".join(group.title for group in groups)


def display(method: str) -> str:
    """The method's name as the paper spells it: ``sinkhorn_e`` is Sinkhorn-E; other names stay."""
    loss, _, weighting = method.partition("_")
    return f"{loss.title()}-{weighting.upper()}" if method in METHODS else method
