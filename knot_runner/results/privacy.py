"""Facts on differentially private training in a federated result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.strict import Between, require
from knot_runner.results.base import Amount, Count, Share


@dataclass(kw_only=True)
class PrivacyFacts:
    """The guarantee (epsilon, delta) after ``rounds`` (epsilon None: infinite), its ``accountant`` and relation of
    ``neighbours``; ``clipped``: share of clipped updates; ``median_norm``: median update norm before clipping."""

    epsilon: Amount | None
    delta: Annotated[float, Between(0.0, 1.0)]
    unit: Literal["client"]
    neighbours: Literal["add or remove", "replace"]
    sampling: Literal["poisson", "fixed"]
    rate: Share
    noise_multiplier: Amount
    clip_norm: Amount | None
    rounds: Count
    accountant: str | None
    clipped: Share | None
    median_norm: Amount | None

    def __post_init__(self) -> None:
        require(self.noise_multiplier > 0 or self.epsilon is None, "epsilon", "is finite, but there was no noise")
