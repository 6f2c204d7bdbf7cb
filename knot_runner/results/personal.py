"""Of clients' own models: measures, points, and what each kind of personalisation says besides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knot_runner.config.strict import require
from knot_runner.results.base import (
    Amount,
    Count,
    Share,
)


@dataclass(kw_only=True)
class PersonalMeasures:
    """Of clients' own models, on their own test examples and on the others'."""

    id_accuracy: Share
    ood_accuracy: Share
    ood_weighted: Share
    all_accuracy: Share
    worst_decile: Share
    id_loss: Amount
    ood_loss: Amount
    clients_hurt: Share | None = None
    unseen_accuracy: Share | None = None


@dataclass(kw_only=True)
class SimilarityFacts:
    """Cosines of clients' label histograms, ``least`` and ``mean`` of two clients; of the aggregation's weights, how
    many a client has that are not 0 and what they come to, in the mean; ``leaves``: what leaves a client."""

    least: Amount
    mean: Amount
    kept: Amount
    sums: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class TransferFacts:
    """The transfer matrix lambda that is deployed, of which ``step``; means of it (``methods.personalisation.
    group_signs``); ``scale``: the largest eigenvalue of the products of updates; ``leaves``: what leaves a client."""

    own: float
    others: float
    negative: Share
    within: float | None = None
    across: float | None = None
    auc: Share | None = None
    step: Count
    scale: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class PersonalPoint(PersonalMeasures):
    """One model of every client: epochs and optimiser steps since the rounds, and weight against the model of then;
    ``phase``: whether clients trained it or it was combined from several."""

    step: Count
    epochs: Count
    sgd_steps: Amount
    alpha: float
    phase: Literal["trained", "combined"] | None = None
    valid_accuracy: Share | None = None


@dataclass
class Barrier:
    """How far the loss rises between a client's model of the last round and its fine-tuned one, above the straight line
    between the two: on its own test examples, and on the others'."""

    client: Count
    barrier: float
    barrier_others: float


@dataclass(kw_only=True)
class PersonalisationFacts:
    """What clients made of their models after the rounds. ``start``: the models of the last round; ``chosen``: the
    number of the point that is deployed; ``id_at_matched_ood``: the best ID accuracy at an OOD accuracy of at most so
    many points less than that of ``start``, and what it gains on ``start`` at 1; ``area``: of the trade-off curve."""

    kind: str
    start: PersonalMeasures
    points: list[PersonalPoint]
    chosen: Count
    id_at_matched_ood: dict[str, Share | None]
    gain_at_matched_ood: Share
    area: Amount
    similarity: SimilarityFacts | None = None
    transfer: TransferFacts | None = None
    landscape: list[Barrier] | None = None
    barrier: float | None = None

    def __post_init__(self) -> None:
        require(self.chosen < len(self.points), "chosen", f"{self.chosen} is not one of {len(self.points)} points")
