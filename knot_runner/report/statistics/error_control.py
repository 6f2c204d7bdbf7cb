"""Error control for claims: neither their number nor repeated looks increase the rate of false verdicts.

The p-values of several claims are corrected by Holm's method.

A preset fixes a number of seeds n beforehand (``report.seeds``). There is a verdict at n, 2 n, 4 n, ... seeds and at no
other number, always over the seeds from 0 on, so that none can be picked. Of the 5% of false verdicts the first look
spends two thirds, each further one two thirds of the rest: 2/3, 2/9, 2/27, ..., which add up to one. By the union bound
false verdicts stay within 5% for any stopping rule (group-sequential testing with alpha spending, Lan & DeMets 1983;
most of it at the planned number, where most studies end).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from knot_runner.report.statistics.effects import EffectEstimate, power

#: Allowed rate of false verdicts over all claims of a preset and all looks.
ALPHA = 0.05
#: Power of a suggested number of seeds.
POWER = 0.8
#: Maximum number of further seeds suggested.
MAX_SEEDS = 100


def holm(values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (1979): below alpha if the claim is decided with family-wise error below alpha."""
    order = np.argsort(values, kind="stable")
    adjusted = [1.0] * len(values)
    worst = 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(values) - place) * values[i]))
        adjusted[i] = worst
    return adjusted


@dataclass(frozen=True)
class Look:
    """A planned look: a verdict at ``seeds`` seeds that spends ``share`` of the allowed error."""

    seeds: int
    share: float


def looks(planned: int) -> Iterator[Look]:
    """All looks, from that at the ``planned`` number of seeds on."""
    return (Look(planned * 2**k, 2 / 3 ** (k + 1)) for k in itertools.count())


def last_look(planned: int, seeds: int) -> Look | None:
    """The last look at ``seeds`` or fewer; None before the first."""
    return max(looks_up_to(planned, seeds), key=lambda look: look.seeds, default=None)


def looks_up_to(planned: int, seeds: int) -> Iterable[Look]:
    """The looks at ``seeds`` or fewer."""
    return itertools.takewhile(lambda look: look.seeds <= seeds, looks(planned))


def seeds_suggested(estimate: EffectEstimate, gap: float, planned: int, seeds: int, claims: int) -> int | None:
    """Number of seeds beyond ``seeds`` until the first look with 80% power, if effect and spread are as estimated;
    ``gap``: from the effect to the threshold; ``claims``: number decided at once.

    None for one seed, whose spread is unknown; ``MAX_SEEDS + 1`` for more than ``MAX_SEEDS``, or never, since there are
    too few test items.
    """
    if estimate.spread is None:
        return None
    for look in looks_up_to(planned, seeds + MAX_SEEDS):
        if look.seeds > seeds and power(estimate, gap, ALPHA * look.share / claims, look.seeds) >= POWER:
            return look.seeds - seeds
    return MAX_SEEDS + 1
