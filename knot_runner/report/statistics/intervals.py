"""Intervals with 95% confidence, and random draws of test examples for the bootstrap (Efron 1979).

Intervals of a mean over seeds are Student's t intervals.
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
    """Return the interval from ``low`` to ``high``, clipped to the range from 0 to ``top``.

    If ``top`` is None, the interval is unchanged.
    """
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
    """A mean over seeds and its 95% t interval.

    Attributes:
        mean: The mean over ``n`` seeds; None without seeds.
        half: The half-width of the 95% interval; None for fewer than two seeds.
        top: The maximum at which the interval is clipped: 1 for a fraction, 100 for a percentage, None for other
            numbers.
    """

    mean: float | None = None
    half: float | None = None
    n: int = 0
    top: float | None = None

    @property
    def band(self) -> tuple[float | None, float | None]:
        """Return the lower and the upper end of the interval; (None, None) for fewer than two seeds."""
        if self.mean is None or self.half is None:
            return None, None
        return clipped_interval(self.mean - self.half, self.mean + self.half, self.top)


def mean_estimate(values: Sequence[float], top: float | None = None) -> Estimate:
    """Return the mean of ``values`` and its 95% t interval.

    If ``top`` is given, the interval is clipped to the range from 0 to ``top``.

    Raises:
        ValueError: ``values`` is empty.
    """
    return Estimate(*mean_interval(values), len(values), top)


def seeds_to_decide(mean: float, half: float, n: int) -> int | None:
    """Return the smallest number of seeds for which the 95% interval excludes 0.

    Return None if this number exceeds :data:`MAX_SEEDS`. The mean and variance over more seeds are assumed to equal
    those of the first ``n`` seeds.

    Args:
        mean: The mean over the first ``n`` seeds.
        half: The half-width of the 95% interval of this mean.
        n: The present number of seeds, at least two.
    """
    level = (1 + LEVEL) / 2
    spread = half * math.sqrt(n) / student_quantile(level, n - 1)
    for count in range(n + 1, MAX_SEEDS + 1):
        if student_quantile(level, count - 1) * spread < abs(mean) * math.sqrt(count):
            return count
    return None


def item_weights(items: int, seed: int) -> Iterator[np.ndarray]:
    """Yield arrays of counts: how often each bootstrap resample contains each test example.

    Each array has the shape [B, N] and the type float32, for B resamples and N = ``items`` test examples. All
    arrays together have :data:`RESAMPLES` rows. The draws depend only on ``items`` and ``seed``.
    """
    rng = np.random.default_rng(seed)
    step = max(1, DRAWS // items)
    for first in range(0, RESAMPLES, step):
        rows = min(step, RESAMPLES - first)
        draws = rng.integers(0, items, (rows, items)) + np.arange(rows)[:, None] * items
        yield np.bincount(draws.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float32)
