"""Uncertainty of an effect over seeds and test examples.

Two common intervals are too narrow:

- A percentile bootstrap of the seeds. With two to five seeds, its interval cannot exceed the range of the seeds'
  effects. In simulations, the coverage of a 95% interval is 51% with two seeds and 76% with three seeds, even with
  Hesterberg's expanded percentiles (arXiv 1411.5279).
- Student's t over the seeds. This interval treats seeds as independent, although all seeds use the same test examples.
  If seeds and the choice of test examples contribute equally to the variance, a 95% interval with five seeds has a
  coverage of 67%.

The variance of the mean effect is therefore computed as the sum of two parts:

- s^2 / n, for n seeds with sample variance s^2
- the covariance between the effects of different seeds when the test examples are resampled

The squared half-widths that belong to the two parts are added (as in Zou & Donner 2008). The interval is never narrower
than the interval over test examples alone. In simulations with two to ten seeds, the coverage of a 95% interval is
95.0% to 99.1%, for every ratio of the two parts.

Neither the number of claims nor interim analyses increase the rate of false verdicts (type-I error) above 5%:

- Holm's method corrects the p-values for the number of claims.
- A preset fixes a number of seeds n in advance (``report.seeds``). Verdicts are given only in interim analyses at n,
  2n, 4n, ... seeds. These analyses use the seeds 0, 1, 2, ..., so that nobody can pick favorable seeds.
- The first analysis may spend two thirds of the 5%, and each further analysis may spend two thirds of the rest. These
  fractions, 2/3, 2/9, 2/27, ..., add up to one. By the union bound, the rate therefore stays within 5% for any stopping
  rule (alpha spending, Lan & DeMets 1983).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from knot_runner.report.statistics.intervals import LEVEL, MAX_SEEDS, normal_quantile, student_quantile

#: Quantile levels of the sample standard deviation in a repeated study, over which :func:`power` averages.
SPREADS = (np.arange(100) + 0.5) / 100


@dataclass(frozen=True)
class EffectEstimate:
    """Mean of an effect over seeds, and the uncertainty of this mean.

    Attributes:
        effect: The mean over seeds.
        seeds: The number of seeds.
        spread: The standard deviation over seeds; None for one seed.
        shared: The covariance between the effects of two seeds when the test examples are resampled, averaged over all
            pairs of seeds.
        items: The variance of the mean when the test examples are resampled and the seeds are fixed.
    """

    effect: float
    seeds: int
    spread: float | None
    shared: float = 0.0
    items: float = 0.0

    @property
    def flat(self) -> bool:
        """Return whether the effect is the same for all seeds and test examples."""
        return not self.spread and not self.items

    def half(self, alpha: float, seeds: int | None = None) -> float:
        """Return the half-width of the confidence interval of level 1 - ``alpha``.

        If ``seeds`` is given, return the half-width to expect with this number of seeds if the spread does not change.
        For an estimate from one seed, the interval reflects only the variation over test examples.
        """
        count = seeds or self.seeds
        z = -normal_quantile(alpha / 2)
        if self.spread is None:
            return z * math.sqrt(self.items)
        t = -student_quantile(alpha / 2, count - 1) * self.spread / math.sqrt(count)
        least = self.items if seeds is None else 0.0
        return math.sqrt(max(t**2 + z**2 * self.shared, z**2 * least))


def interval(estimate: EffectEstimate) -> tuple[float, float]:
    """Return the lower and the upper end of the 95% interval of the effect.

    If the effect is the same for all seeds and test examples, both ends equal the effect.
    """
    half = estimate.half(1 - LEVEL)
    return estimate.effect - half, estimate.effect + half


def p_value(estimate: EffectEstimate, threshold: float) -> float | None:
    """Return the two-sided p-value for the hypothesis that the effect equals ``threshold``; None for one seed.

    The p-value is the smallest alpha for which the interval of level 1 - alpha excludes ``threshold``. If the effect is
    the same for all seeds and test examples, the sign test gives the p-value.
    """
    gap = abs(estimate.effect - threshold)
    if estimate.seeds < 2:
        return None
    if not gap:
        return 1.0
    if estimate.flat:
        return sign_test(estimate.seeds)
    low = math.log(1e-15)
    high = 0.0  # half() falls as alpha grows
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if estimate.half(math.exp(middle)) < gap else (middle, high)
    return math.exp(high)


def sign_test(seeds: int) -> float:
    """Return the two-sided p-value of the sign test for ``seeds`` effects that all have the same sign.

    Sources: Arbuthnott 1710; Dixon & Mood 1946.
    """
    return 2.0 ** (1 - seeds)


def power(estimate: EffectEstimate, gap: float, alpha: float, seeds: int) -> float:
    """Return the probability that the interval of a repeated study excludes a threshold.

    The true effect and spread are assumed to equal the estimates. The repeated study uses the same test examples.

    Args:
        estimate: The estimates of effect and spread.
        gap: The distance between the effect and the threshold.
        alpha: The interval of the repeated study has level 1 - ``alpha``.
        seeds: The number of seeds in the repeated study, at least two.
    """
    if estimate.flat:
        return float(gap > 0 and sign_test(seeds) < alpha)
    noise = (estimate.spread or 0.0) / math.sqrt(seeds)
    if not noise:
        return float(estimate.half(alpha, seeds) < gap)
    from scipy.special import chdtri, ndtr

    errors = noise * np.sqrt(chdtri(seeds - 1, SPREADS) / (seeds - 1))
    over_seeds = -student_quantile(alpha / 2, seeds - 1) * errors
    halves = np.hypot(over_seeds, -normal_quantile(alpha / 2) * math.sqrt(estimate.shared))
    return float(ndtr((gap - halves) / noise).mean())


def estimate_effect(effects: Sequence[float], replicates: np.ndarray | None) -> EffectEstimate:
    """Return the estimate of an effect over seeds and test examples.

    Args:
        effects: One effect per seed, for n seeds.
        replicates: The effects of the n seeds, computed on B resamples of the test examples, shape [B, n]. Seeds with
            the same test examples must use the same resamples. Seeds with different test examples must use independent
            resamples. Without ``replicates``, the estimate reflects only the variation over seeds.
    """
    count = len(effects)
    effect = math.fsum(effects) / len(effects)
    spread = None
    if count > 1:
        spread = float(np.std(effects, ddof=1))
        if spread <= 1e-12 * abs(effect):  # rounding
            spread = 0.0
    if replicates is None:
        return EffectEstimate(effect, count, spread)
    items = float(np.var(replicates.mean(1), ddof=1))
    alone = float(np.var(replicates, axis=0, ddof=1).sum()) / count**2
    shared = max(items - alone, 0.0) * count / max(count - 1, 1)  # mean covariance of two seeds
    return EffectEstimate(effect, count, spread, shared, items)


# ----------------------------------------------------------------------------------------------------- error control


#: Allowed rate of false verdicts over all claims of a preset and all interim analyses.
ALPHA = 0.05
#: Power at which a number of seeds is suggested.
POWER = 0.8


def holm(values: Sequence[float]) -> list[float]:
    """Return the p-values ``values`` after Holm's correction for the number of hypotheses (Holm 1979).

    If you reject every hypothesis with a corrected p-value of at most alpha, the family-wise error rate is at most
    alpha.
    """
    order = np.argsort(values, kind="stable")
    steps = np.arange(len(values), 0, -1) * np.array(values)[order]
    adjusted = np.empty(len(values))
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1.0)
    return adjusted.tolist()


@dataclass(frozen=True)
class Look:
    """A planned interim analysis.

    Attributes:
        seeds: The number of seeds that the analysis uses.
        share: The fraction of the allowed type-I error :data:`ALPHA` that the analysis may spend.
    """

    seeds: int
    share: float


def looks(planned: int, seeds: int) -> list[Look]:
    """Return the planned interim analyses that need at most ``seeds`` seeds.

    Interim analyses use ``planned``, ``2 * planned``, ``4 * planned``, ... seeds.
    """
    reached: list[Look] = []
    while (count := planned * 2 ** len(reached)) <= seeds:
        # Most of the error is spent at the planned number of seeds, where most studies end.
        reached.append(Look(count, 2 / 3 ** (len(reached) + 1)))
    return reached


def seeds_suggested(estimate: EffectEstimate, gap: float, planned: int, seeds: int, claims: int) -> int | None:
    """Return how many seeds must be added for an interim analysis to have a power of at least 80%.

    The true effect and spread are assumed to equal the estimates. Return None for an estimate from one seed, because
    its spread is unknown. Return ``MAX_SEEDS + 1`` if more than ``MAX_SEEDS`` seeds must be added.

    Args:
        estimate: The estimate of the effect.
        gap: The distance between the effect and the threshold.
        planned: The planned number of seeds.
        seeds: The present number of seeds.
        claims: The number of undecided claims. Holm's method divides alpha by this number.
    """
    if estimate.spread is None:
        return None
    for look in looks(planned, seeds + MAX_SEEDS):
        if look.seeds > seeds and power(estimate, gap, ALPHA * look.share / claims, look.seeds) >= POWER:
            return look.seeds - seeds
    return MAX_SEEDS + 1
