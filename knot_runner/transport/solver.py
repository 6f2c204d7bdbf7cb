"""Which transport solver to use and with what settings, and the error that all of them raise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knot_runner.config.strict import require


class TransportError(FloatingPointError):
    """Input rows that are no probability vectors, or problems that did not reach the tolerance."""


@dataclass
class Solver:
    """Settings of :func:`knot_runner.transport.transport_loss`.

    ``newton`` reads ``epsilon`` and ``tolerance``, ``geomloss`` reads ``epsilon`` and ``scaling``; ``exact``,
    ``line`` and ``tree`` are the limit epsilon = 0 and read none.
    """

    name: Literal["newton", "geomloss", "exact", "line", "tree"]
    #: weight of KL(pi | p x q), in units of the coordinates. KNOT names .001 (code, "chose") and .003 ("used")
    epsilon: float
    #: newton: largest error of the second marginal, summed over labels; the first is exact
    tolerance: float
    #: geomloss: ratio of its schedule; .5 as published (far from converged), .99 within a few tenths of a percent
    scaling: float

    def __post_init__(self) -> None:
        if self.name in ("newton", "geomloss"):
            require(
                self.epsilon >= 1e-4, "epsilon", f"{self.epsilon} is below 1e-4; solver exact or line takes the limit"
            )
        require(1e-12 <= self.tolerance <= 1e-3, "tolerance", f"{self.tolerance} is outside 1e-12..1e-3")
        require(0 < self.scaling < 1, "scaling", f"{self.scaling} is not between 0 and 1")
