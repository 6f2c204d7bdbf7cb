"""Mean and its 95% interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
