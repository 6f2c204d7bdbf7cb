"""Mean and its 95% interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
#: How often verdicts may be false, over all claims of a preset and all looks at them.
ALPHA = 0.05


def clipped_interval(low: float, high: float, top: float | None) -> tuple[float, float]:
    """The interval of a share, cut at 0 and ``top``, beyond which no true value lies; None: of anything else, whole."""
    return (low, high) if top is None else (max(low, 0.0), min(high, top))


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean of ``values`` and half the width of its 95% Student-t interval (n - 1 degrees of freedom).

    One value has no interval: the half-width is None. Raises ValueError when ``values`` is empty.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no values to average")
    mean = math.fsum(values) / n
    if n == 1:
        return mean, None
    from scipy.special import stdtrit  # here, since scipy takes a third of a second to import

    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return mean, float(stdtrit(n - 1, (1 + LEVEL) / 2)) * spread / math.sqrt(n)


@dataclass(frozen=True)
class MeanEstimate:
    """``mean`` over ``n`` runs, ``half`` of its 95% interval (None under two runs); ``top``: the most that a share can
    be, where the interval is cut, as at 0."""

    mean: float
    half: float | None
    n: int
    top: float | None = None

    @property
    def band(self) -> tuple[float | None, float | None]:
        """The interval."""
        if self.half is None:
            return None, None
        return clipped_interval(self.mean - self.half, self.mean + self.half, self.top)


def mean_estimate(values: Sequence[float], top: float | None = None) -> MeanEstimate | None:
    """Mean and 95% t interval of ``values``; None of none."""
    return MeanEstimate(*mean_interval(values), len(values), top) if values else None
