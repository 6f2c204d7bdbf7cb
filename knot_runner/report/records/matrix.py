"""A run of kind ``matrix`` in the terminal: distances between data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from knot_runner.report.records.summary_grid import summary_grid, summary_lines
from knot_runner.report.text import plain

#: More data sets than these are told by their range, not by a grid.
_MAX_SHOWN = 6
MATRIX_SOLVERS = {"federated": "FedWaD, approximate", "exact": "exact optimal transport, centralised"}


def matrix_summary(name: str, result: dict[str, Any]) -> Group:
    """All distances where data sets are few; else their range, and that within and between planted groups."""
    matrix = np.array(result["matrix"])
    table = (_all if len(matrix) <= _MAX_SHOWN else _ranges)(summary_grid(name, "squared distances"), result, matrix)
    pairs, sizes = len(matrix) * (len(matrix) - 1) // 2, result["sizes"]
    samples = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    line = (
        f"{MATRIX_SOLVERS[result['solver']]}; {pairs} pairs of {len(matrix)} data sets, {samples} samples each; "
        f"{result['seconds']['distances']:.3g} s"
    )
    return Group(table, *summary_lines([line], result))


def _all(table: Grid, result: dict[str, Any], matrix: np.ndarray) -> Grid:
    for name in result["names"]:
        table.add_column(Text(plain(name)), justify="right")
    for i, name in enumerate(result["names"]):
        values = [Text("-" if i == j else f"{matrix[i, j]:,.1f}") for j in range(len(matrix))]
        table.add_row(Text(plain(name)), *values)
    return table


def _ranges(table: Grid, result: dict[str, Any], matrix: np.ndarray) -> Grid:
    for head in ("pairs", "smallest", "median", "largest"):
        table.add_column(head, justify="right")
    for title, values in kinds_of_pairs(matrix, result.get("groups")).items():
        found = (values.min(), np.median(values), values.max())
        table.add_row(title, str(len(values)), *(f"{value:,.1f}" for value in found))
    return table


def kinds_of_pairs(matrix: np.ndarray, groups: list[int] | None) -> dict[str, np.ndarray]:
    """Distances [M] of all pairs, and, where there are planted ``groups``, of those within one and between two.

    ``matrix`` [N, N]. A kind without a pair is left out.
    """
    rows, columns = np.triu_indices(len(matrix), 1)
    found = {"all pairs": matrix[rows, columns]}
    if groups is not None:
        alike = np.array(groups)[rows] == np.array(groups)[columns]
        found |= {"in one planted group": found["all pairs"][alike], "of two groups": found["all pairs"][~alike]}
    return {title: values for title, values in found.items() if len(values)}
