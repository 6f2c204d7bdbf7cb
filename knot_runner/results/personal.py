"""Results of clients' own (personalised) models: measures, points, and facts of each kind of personalisation."""

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
    """Measures of clients' own models on their own test examples (ID) and on the other clients' (OOD)."""

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
    """Cosine similarity of clients' label histograms: ``least`` and ``mean`` over pairs of clients; of the aggregation
    weights of a client, the mean number of non-zero ones (``kept``) and their mean sum (``sums``); ``leaves``: what a
    client sends."""

    least: Amount
    mean: Amount
    kept: Amount
    sums: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class TransferFacts:
    """The deployed transfer matrix lambda, that of ``step``: means of its entries (``methods.personalisation.
    group_signs``); ``scale``: the largest eigenvalue of the products of updates; ``leaves``: what a client sends."""

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
    """One point on the personalisation path of all clients: epochs and optimiser steps after the rounds, and
    interpolation weight ``alpha`` against the model after the last round; ``phase``: whether clients trained it or it
    was combined from several."""

    step: Count
    epochs: Count
    sgd_steps: Amount
    alpha: float
    phase: Literal["trained", "combined"] | None = None
    valid_accuracy: Share | None = None


@dataclass
class Barrier:
    """Loss barrier between a client's model after the last round and its fine-tuned one, above linear interpolation of
    the two losses: on its own test examples, and on the other clients'."""

    client: Count
    barrier: float
    barrier_others: float


@dataclass(kw_only=True)
class PersonalisationFacts:
    """Personalisation after the rounds. ``start``: the models after the last round; ``chosen``: index of the deployed
    point; ``id_at_matched_ood``: allowed drop of OOD accuracy, in points -> best ID accuracy;
    ``gain_at_matched_ood``: its gain over ``start`` at 1 point; ``area``: under the trade-off curve."""

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
