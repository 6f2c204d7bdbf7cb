"""95% intervals, and the draws of test items for the bootstrap.

The intervals are Student's t for a mean over seeds, Wilson's for a share, and the percentile bootstrap for a metric
(Efron 1979). All runs with the same test set use the same draws of test items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
#: Maximum number of further seeds suggested.
MAX_SEEDS = 100
#: Numbers of draws held at once: 32 MB.
DRAWS = 4_000_000


def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution with ``freedom`` degrees of freedom."""
    from scipy.special import stdtrit  # here, since scipy takes a third of a second to import

    return float(stdtrit(freedom, probability))


def normal_quantile(probability: float) -> float:
    """Return the quantile of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def clipped_interval(low: float, high: float, top: float | None) -> tuple[float, float]:
    """Return the interval, clipped to the range 0 to ``top`` of a share; unchanged if ``top`` is None."""
    return (low, high) if top is None else (max(low, 0.0), min(high, top))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of ``values`` and half its 95% Student-t interval (n - 1 degrees of freedom; Student 1908).

    For a single value, the half-width is None.

    Raises:
        ValueError: ``values`` is empty.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values to average")
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, student_quantile((1 + LEVEL) / 2, n - 1) * spread / math.sqrt(n)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its 95% interval, which is clipped at 0 and ``top``.

    Attributes:
        mean: The mean over ``n`` seeds; None without seeds.
        half: The half-width of the 95% interval; None for fewer than two seeds.
        top: The maximum of a share; None for other numbers.
    """

    mean: float | None = None
    half: float | None = None
    n: int = 0
    top: float | None = None

    @property
    def band(self) -> tuple[float | None, float | None]:
        """Return the interval; (None, None) for fewer than two seeds."""
        if self.mean is None or self.half is None:
            return None, None
        return clipped_interval(self.mean - self.half, self.mean + self.half, self.top)


def mean_estimate(values: Sequence[float], top: float | None = None) -> Estimate:
    """Return the mean and 95% t interval of ``values``. Raises ValueError when they are empty."""
    return Estimate(*mean_interval(values), len(values), top)


def seeds_to_decide(mean: float, half: float, n: int) -> int | None:
    """Return the number of seeds whose 95% interval excludes 0, or None for more than :data:`MAX_SEEDS`.

    The mean and variance of more seeds are assumed to equal those of the first ``n`` seeds.
    """
    level = (1 + LEVEL) / 2
    spread = half * math.sqrt(n) / student_quantile(level, n - 1)
    for count in range(n + 1, MAX_SEEDS + 1):
        if student_quantile(level, count - 1) * spread < abs(mean) * math.sqrt(count):
            return count
    return None


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95% interval of a ``share`` of ``count`` examples (Wilson 1927, without continuity correction)."""
    z = normal_quantile((1 + LEVEL) / 2)
    spread = z**2 / count
    center = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return max(center - half, 0.0), min(center + half, 1.0)


def resampled_sums(columns: np.ndarray, seed: int, resamples: int = RESAMPLES) -> np.ndarray:
    """Return sums [B, K] of the ``columns`` [N, K] over N test items drawn with replacement, B times.

    The draws depend only on N and ``seed``, so that the columns of other runs use the same items.
    """
    items = len(columns)
    values = columns.astype(np.float32)
    sums = []
    for drawn in item_draws(items, seed, resamples):
        rows = len(drawn)
        draws = drawn + np.arange(rows)[:, None] * items
        weights = np.bincount(draws.ravel(), minlength=rows * items).reshape(rows, items)
        sums.append(weights.astype(np.float32) @ values)
    return np.concatenate(sums).astype(np.float64)


def item_draws(items: int, seed: int, resamples: int = RESAMPLES) -> Iterator[np.ndarray]:
    """Yield the positions [rows, items] of ``items`` test items drawn with replacement.

    Each array contains a part of the resamples.
    """
    rng = np.random.default_rng(seed)
    step = max(1, DRAWS // items)
    for first in range(0, resamples, step):
        yield rng.integers(0, items, (min(step, resamples - first), items))


# ------------------------------------------------------------------------------------------------------- association


@dataclass(frozen=True)
class Agreement:
    """Agreement of approximate numbers with exact numbers.

    Attributes:
        spearman: The rank correlation (Spearman 1904).
        kept: The number of pairs that both lists have in the same order.
        relations: The number of all pairs.
        inflation: The median ratio to the exact number; NaN if an exact number is 0.
    """

    spearman: float
    kept: int
    relations: int
    inflation: float


def agreement_of(ours: np.ndarray, exact: np.ndarray) -> Agreement | None:
    """Return the agreement of ``ours`` [M] with ``exact`` [M], all non-negative.

    Return None for M < 2, or if all numbers of one list are equal.
    """
    if len(exact) < 2 or np.ptp(exact) == 0 or np.ptp(ours) == 0:
        return None
    from scipy.stats import spearmanr  # here, since scipy takes a third of a second to import

    first, second = np.triu_indices(len(exact), 1)
    same = np.sign(ours[first] - ours[second]) == np.sign(exact[first] - exact[second])
    inflation = float(np.median(ours / exact)) if exact.min() > 0 else float("nan")
    return Agreement(float(spearmanr(ours, exact).statistic), int(same.sum()), len(same), inflation)


def log_log_slopes(places: Sequence[float], rows: np.ndarray) -> list[float]:
    """Return the least-squares slope of log(row) over log(``places``) [N] for each of ``rows`` [R, N], all positive."""
    return list(map(float, np.polyfit(np.log(places), np.log(rows).T, 1)[0]))
