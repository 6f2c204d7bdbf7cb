"""A run of kind ``matrix`` in the terminal: distances between data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group

from knot_runner.report.records.summary_grid import run_view

#: More data sets than these are told by their range, not by a grid.
_MAX_SHOWN = 6
MATRIX_SOLVERS = {"federated": "FedWaD, approximate", "exact": "exact optimal transport, centralised"}


def matrix_summary(name: str, result: dict[str, Any]) -> Group:
    """All distances where data sets are few; else their range, and that within and between planted groups."""
    matrix = np.array(result["matrix"])
    pairs, sizes = len(matrix) * (len(matrix) - 1) // 2, result["sizes"]
    samples = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    line = (
        f"{MATRIX_SOLVERS[result['solver']]}; {pairs} pairs of {len(matrix)} data sets, {samples} samples each; "
        f"{result['seconds']['distances']:.3g} s"
    )
    heads, rows = ["pairs", "smallest", "median", "largest"], []
    if len(matrix) <= _MAX_SHOWN:
        heads = result["names"]
        for i, first in enumerate(heads):
            rows.append((first, ["-" if i == j else f"{matrix[i, j]:,.1f}" for j in range(len(matrix))]))
    else:
        for title, values in kinds_of_pairs(matrix, result.get("groups")).items():
            found = (values.min(), np.median(values), values.max())
            rows.append((title, [str(len(values)), *(f"{value:,.1f}" for value in found)]))
    return run_view(name, result, ["squared distances", *heads], rows, [line], wraps=True)


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
