"""Association of two lists of numbers: agreement of their order, and power-law fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Agreement of numbers with exact ones. ``spearman``: rank correlation (Spearman 1904); ``kept`` of ``relations``:
    pairs of numbers in the same order; ``inflation``: median ratio to the exact number, NaN if one is 0."""

    spearman: float
    kept: int
    relations: int
    inflation: float


def agreement_of(ours: np.ndarray, exact: np.ndarray) -> Agreement | None:
    """Agreement of ``ours`` [M] with ``exact`` [M], all non-negative; None for M < 2 or if all of one list are
    equal."""
    if len(exact) < 2 or np.ptp(exact) == 0 or np.ptp(ours) == 0:
        return None
    from scipy.stats import spearmanr  # here, since scipy takes a third of a second to import

    first, second = np.triu_indices(len(exact), 1)
    same = np.sign(ours[first] - ours[second]) == np.sign(exact[first] - exact[second])
    inflation = float(np.median(ours / exact)) if exact.min() > 0 else float("nan")
    return Agreement(float(spearmanr(ours, exact).statistic), int(same.sum()), len(same), inflation)


def log_log_slopes(places: Sequence[float], rows: np.ndarray) -> list[float]:
    """Least-squares slope of log(row) on log(``places``) [N] for each of ``rows`` [R, N], all positive."""
    return list(map(float, np.polyfit(np.log(places), np.log(rows).T, 1)[0]))
