"""95% intervals, and random draws of test items for the bootstrap.

The intervals are Student's t for a mean over seeds, and the percentile bootstrap for a metric (Efron 1979). All runs
with the same test set use the same draws of test items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
RESAMPLES = 2000
#: Maximum number of further seeds that reports suggest.
MAX_SEEDS = 100
#: Maximum number of draws in memory at the same time: 32 MB.
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
    """Return the mean of n ``values`` and the half-width of its 95% t interval (n - 1 degrees of freedom).

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
    """A mean over seeds and its 95% interval. The interval of a share is clipped at 0 and ``top``.

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
    """Return the mean and 95% t interval of ``values``. Raises ValueError if ``values`` is empty."""
    return Estimate(*mean_interval(values), len(values), top)


def seeds_to_decide(mean: float, half: float, n: int) -> int | None:
    """Return the number of seeds at which the 95% interval excludes 0, or None for more than :data:`MAX_SEEDS`.

    The mean and variance of more seeds are assumed to equal those of the first ``n`` seeds.
    """
    level = (1 + LEVEL) / 2
    spread = half * math.sqrt(n) / student_quantile(level, n - 1)
    for count in range(n + 1, MAX_SEEDS + 1):
        if student_quantile(level, count - 1) * spread < abs(mean) * math.sqrt(count):
            return count
    return None


def item_weights(items: int, seed: int) -> Iterator[np.ndarray]:
    """Yield arrays of shape [resamples, items], float32: how often each of ``items`` test items is drawn in a resample.

    The product of such an array with a matrix of shape [items, K] has the sums of the K columns over each resample. All
    arrays together have :data:`RESAMPLES` rows. The draws depend only on ``items`` (the number of test items) and
    ``seed``, so that all runs with the same test set draw the same items.
    """
    rng = np.random.default_rng(seed)
    step = max(1, DRAWS // items)
    for first in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - first)
        draws = rng.integers(0, items, (rows, items)) + np.arange(rows)[:, None] * items
        yield np.bincount(draws.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float32)
