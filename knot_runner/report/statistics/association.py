"""How two lists of numbers go together: the order that both have, and a power law fitted to one by the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Of numbers with the exact ones. ``spearman``: rank correlation (Spearman 1904); ``kept`` of ``relations``: pairs
    of numbers that come in the same order; ``inflation``: median ratio to the exact number, NaN where one is 0."""

    spearman: float
    kept: int
    relations: int
    inflation: float


def agreement_of(ours: np.ndarray, exact: np.ndarray) -> Agreement | None:
    """Of ``ours`` [M] with ``exact`` [M], none of which is below 0; None under two, or where all of one are equal."""
    if len(exact) < 2 or np.ptp(exact) == 0 or np.ptp(ours) == 0:
        return None
    from scipy.stats import spearmanr  # here, since scipy takes a third of a second to import

    first, second = np.triu_indices(len(exact), 1)
    same = np.sign(ours[first] - ours[second]) == np.sign(exact[first] - exact[second])
    inflation = float(np.median(ours / exact)) if exact.min() > 0 else float("nan")
    return Agreement(float(spearmanr(ours, exact).statistic), int(same.sum()), len(same), inflation)


def log_log_slopes(places: Sequence[float], rows: np.ndarray) -> list[float]:
    """Slope of the logarithm of each of ``rows`` [R, N], all above 0, on that of ``places`` [N], by least squares."""
    return np.polyfit(np.log(places), np.log(rows).T, 1)[0].tolist()
