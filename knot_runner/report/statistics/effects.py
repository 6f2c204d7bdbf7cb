"""How sure an effect is, over seeds and over test items: bootstrap of the items, Student's t over the seeds.

With two to five seeds a percentile bootstrap cannot leave the range of the seeds: its 95% interval covers 51% of the
time with two seeds and 76% with three, also with Hesterberg's expanded percentiles (arXiv 1411.5279; simulated). And
Student's t over the seeds alone takes them for independent, although all meet the same test items: it covers 67% with
five seeds where a seed and the set of items vary alike. So the variance of the mean has two parts: s^2 / n over seeds,
and what the seeds share through their items, the covariance of their effects when the items are resampled. The squares
of the two half-widths add up (as in Zou & Donner 2008); what items alone make uncertain is the least width. Simulated
coverage of 95% intervals: 95.0% to 99.1%, for two to ten seeds and any share of the items (``test_report_bootstrap``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knot_runner.report.statistics.intervals import LEVEL, normal_quantile, student_quantile

#: Quantiles of the spread that further seeds may show.
SPREADS = (np.arange(100) + 0.5) / 100


@dataclass(frozen=True)
class EffectEstimate:
    """A mean ``effect`` over ``seeds``. ``spread``: standard deviation over seeds, None of one; ``shared``: the part of
    the mean's variance that more seeds leave (their common test items); ``items``: the variance that items alone
    make."""

    effect: float
    seeds: int
    spread: float | None
    shared: float = 0.0
    items: float = 0.0

    @property
    def flat(self) -> bool:
        """Whether nothing varies, so that there is no spread to judge by."""
        return not self.spread and not self.items

    def half(self, alpha: float, seeds: int | None = None) -> float:
        """Half the width of the interval of level 1 - ``alpha``, with as many ``seeds``, these by default.

        One seed: over test items alone.
        """
        count = seeds or self.seeds
        z = -normal_quantile(alpha / 2)
        if self.spread is None:
            return z * math.sqrt(self.items)
        t = -student_quantile(alpha / 2, count - 1) * self.spread / math.sqrt(count)
        least = self.items if seeds is None else 0.0
        return math.sqrt(max(t**2 + z**2 * self.shared, z**2 * least))


def interval(estimate: EffectEstimate) -> tuple[float, float] | None:
    """The 95% interval; None where nothing varies."""
    if estimate.flat:
        return None
    half = estimate.half(1 - LEVEL)
    return estimate.effect - half, estimate.effect + half


def p_value(estimate: EffectEstimate, threshold: float) -> float | None:
    """Two-sided: the least alpha whose interval leaves ``threshold`` out; None of one seed.

    Where no seed differs from another: that of the sign test.
    """
    gap = abs(estimate.effect - threshold)
    if estimate.seeds < 2:
        return None
    if estimate.flat:
        return sign_test(estimate.seeds) if gap else 1.0
    low, high = math.log(1e-15), 0.0  # half() falls as alpha grows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if estimate.half(math.exp(middle)) < gap else (middle, high)
    return math.exp(high)


def sign_test(seeds: int) -> float:
    """The two-sided p-value of ``seeds`` effects that all lie on one side (Arbuthnott 1710; Dixon & Mood 1946)."""
    return 2.0 ** (1 - seeds)


def power(estimate: EffectEstimate, gap: float, alpha: float, seeds: int) -> float:
    """The chance that ``seeds`` seeds leave a threshold at a distance of ``gap`` out of their interval of level
    1 - ``alpha``, were effect and spread as they are; of two seeds or more. The test items stay as they are."""
    if estimate.flat:
        return float(gap > 0 and sign_test(seeds) < alpha)
    noise = (estimate.spread or 0.0) / math.sqrt(seeds)
    if not noise:
        return float(estimate.half(alpha, seeds) < gap)
    from scipy.special import chdtri, ndtr

    found = noise * np.sqrt(chdtri(seeds - 1, SPREADS) / (seeds - 1))
    over_seeds = -student_quantile(alpha / 2, seeds - 1) * found
    halves = np.hypot(over_seeds, -normal_quantile(alpha / 2) * math.sqrt(estimate.shared))
    return float(ndtr((gap - halves) / noise).mean())


def estimate_effect(effects: Sequence[float], replicates: np.ndarray | None) -> EffectEstimate:
    """Of the ``effects`` of n seeds, and their ``replicates`` [B, n] when test items are resampled: the same items in
    one row for all seeds that share them, others drawn apart. None: over seeds alone."""
    count, effect = len(effects), math.fsum(effects) / len(effects)
    spread = float(np.std(effects, ddof=1)) if count > 1 else None
    if spread is not None and spread <= 1e-12 * abs(effect):  # rounding
        spread = 0.0
    if replicates is None:
        return EffectEstimate(effect, count, spread)
    items = float(np.var(replicates.mean(1), ddof=1))
    own = float(np.var(replicates, axis=0, ddof=1).sum()) / count**2
    shared = max(items - own, 0.0) * count / (count - 1) if count > 1 else 0.0  # mean covariance of two seeds
    return EffectEstimate(effect, count, spread, shared, items)
