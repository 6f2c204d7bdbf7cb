"""Uncertainty of an effect over seeds and test items: bootstrap of the items, Student's t over the seeds.

With two to five seeds, a percentile bootstrap cannot leave the range of the seeds: its 95% interval covers 51% with two
seeds and 76% with three, also with Hesterberg's expanded percentiles (arXiv 1411.5279; simulated). Student's t over the
seeds treats them as independent, although all share the same test items. It covers 67% with five seeds if seeds and
item sets have equal variance. The variance of the mean therefore has two parts: s^2 / n over seeds, and the part that
seeds share through their items, the covariance of their effects when the items are resampled. The squares of the two
half-widths are added (as in Zou & Donner 2008). The interval over items alone is the minimum width. Simulated coverage
of 95% intervals: 95.0% to 99.1%, for two to ten seeds and any share of the items (``test_intervals``).

Error control: neither the number of claims nor interim analyses increase the rate of false verdicts. The p-values of
several claims are corrected by Holm's method. A preset fixes a number of seeds n in advance (``report.seeds``).
Verdicts are given at n, 2 n, 4 n, ... seeds and at no other number, always over the seeds from 0 on, so that none can
be selected. Of the 5% of false verdicts, the first analysis spends two thirds, and each further one two thirds of the
rest: 2/3, 2/9, 2/27, ..., which add up to one. By the union bound, false verdicts stay within 5% for any stopping rule
(group-sequential testing with alpha spending, Lan & DeMets 1983). Most of the error is spent at the planned number,
where most studies end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knot_runner.report.statistics.intervals import LEVEL, MAX_SEEDS, normal_quantile, student_quantile

#: Quantile levels for the spread of further seeds.
SPREADS = (np.arange(100) + 0.5) / 100


@dataclass(frozen=True)
class EffectEstimate:
    """A mean ``effect`` over ``seeds``.

    ``spread``: standard deviation over seeds, None for one seed; ``shared``: the part of the mean's variance that more
    seeds do not reduce (common test items); ``items``: the variance due to items alone.
    """

    effect: float
    seeds: int
    spread: float | None
    shared: float = 0.0
    items: float = 0.0

    @property
    def flat(self) -> bool:
        """Return whether nothing varies, so that no spread can be estimated."""
        return not self.spread and not self.items

    def half(self, alpha: float, seeds: int | None = None) -> float:
        """Return the half-width of the interval of level 1 - ``alpha`` with ``seeds`` seeds, by default the estimate's.

        For one seed, it covers test items only.
        """
        count = seeds or self.seeds
        z = -normal_quantile(alpha / 2)
        if self.spread is None:
            return z * math.sqrt(self.items)
        t = -student_quantile(alpha / 2, count - 1) * self.spread / math.sqrt(count)
        least = self.items if seeds is None else 0.0
        return math.sqrt(max(t**2 + z**2 * self.shared, z**2 * least))


def interval(estimate: EffectEstimate) -> tuple[float, float] | None:
    """Return the 95% interval; None if nothing varies."""
    if estimate.flat:
        return None
    half = estimate.half(1 - LEVEL)
    return estimate.effect - half, estimate.effect + half


def p_value(estimate: EffectEstimate, threshold: float) -> float | None:
    """Return the two-sided p-value: the smallest alpha whose interval excludes ``threshold``; None for one seed.

    If all seeds are equal, it is the p-value of the sign test.
    """
    gap = abs(estimate.effect - threshold)
    if estimate.seeds < 2:
        return None
    if estimate.flat:
        return sign_test(estimate.seeds) if gap else 1.0
    low = math.log(1e-15)
    high = 0.0  # half() falls as alpha grows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if estimate.half(math.exp(middle)) < gap else (middle, high)
    return math.exp(high)


def sign_test(seeds: int) -> float:
    """Return the two-sided p-value of ``seeds`` effects of the same sign (Arbuthnott 1710; Dixon & Mood 1946)."""
    return 2.0 ** (1 - seeds)


def power(estimate: EffectEstimate, gap: float, alpha: float, seeds: int) -> float:
    """Return the probability that an interval excludes a threshold at distance ``gap``.

    The interval has level 1 - ``alpha`` over ``seeds`` seeds, at least two, on the same test items. Effect and spread
    are assumed to equal the estimates.
    """
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
    """Return the estimate from the ``effects`` of n seeds and their ``replicates`` [B, n] on resampled test items.

    Seeds that share items have the same items in a row; others are drawn independently. ``replicates`` None: over seeds
    only.
    """
    count = len(effects)
    effect = math.fsum(effects) / len(effects)
    spread = float(np.std(effects, ddof=1)) if count > 1 else None
    if spread is not None and spread <= 1e-12 * abs(effect):  # rounding
        spread = 0.0
    if replicates is None:
        return EffectEstimate(effect, count, spread)
    items = float(np.var(replicates.mean(1), ddof=1))
    own = float(np.var(replicates, axis=0, ddof=1).sum()) / count**2
    shared = max(items - own, 0.0) * count / (count - 1) if count > 1 else 0.0  # mean covariance of two seeds
    return EffectEstimate(effect, count, spread, shared, items)


# ----------------------------------------------------------------------------------------------------- error control


#: Allowed rate of false verdicts over all claims of a preset and all looks.
ALPHA = 0.05
#: Power of a suggested number of seeds.
POWER = 0.8


def holm(values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (1979). Decisions at alpha then have a family-wise error of at most alpha."""
    order = np.argsort(values, kind="stable")
    adjusted = [1.0] * len(values)
    worst = 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[i]))
        adjusted[i] = worst
    return adjusted


@dataclass(frozen=True)
class Look:
    """A planned interim analysis: a verdict at ``seeds`` seeds, which spends ``share`` of the allowed error."""

    seeds: int
    share: float


def looks(planned: int, seeds: int) -> list[Look]:
    """Return the interim analyses at ``seeds`` or fewer seeds, the first one at the ``planned`` number."""
    found: list[Look] = []
    while (count := planned * 2 ** len(found)) <= seeds:
        found.append(Look(count, 2 / 3 ** (len(found) + 1)))
    return found


def seeds_suggested(estimate: EffectEstimate, gap: float, planned: int, seeds: int, claims: int) -> int | None:
    """Return the number of seeds in addition to ``seeds`` until the first interim analysis with 80% power.

    Effect and spread are assumed to equal the estimates. ``gap``: distance from the effect to the threshold;
    ``claims``: number of claims that are decided together. None for one seed, whose spread is unknown. ``MAX_SEEDS +
    1`` for more than ``MAX_SEEDS``, or never, if there are too few test items.
    """
    if estimate.spread is None:
        return None
    for look in looks(planned, seeds + MAX_SEEDS):
        if look.seeds > seeds and power(estimate, gap, ALPHA * look.share / claims, look.seeds) >= POWER:
            return look.seeds - seeds
    return MAX_SEEDS + 1
