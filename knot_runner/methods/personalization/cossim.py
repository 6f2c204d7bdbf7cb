"""Repeated averaging of clients' models, weighted by the similarity of the clients' label distributions.

First, every client trains its model of the last round. Each of the following rounds replaces the model theta_k of
client k by sum_i A_ki theta_i, and every client trains again. The weights A are computed from the clients' similarities
(:func:`aggregation_weights`).

Source: a blog post on conflicting objectives, see docs/papers/soup.md.

State: ``theta/weights`` [K, P] and ``theta/buffers`` [K, Q] of all clients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knot_runner.config.settings.methods.personalization import CossimSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.federated.own_models import init
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.methods.personalization.combine import client_models, stacked_models, weighted_sums
from knot_runner.methods.personalization.contract import (
    Finished,
    MeasuredModels,
    PersonalFederation,
    Personalization,
    Point,
    train_all,
    with_trained,
)


def label_similarities(federation: Federation) -> Tensor:
    """Return the cosine similarities of the clients' histograms of training labels, float64 [K, K].

    The diagonal is 1.
    """
    classes = int(federation.train_labels.max()) + 1
    counts = [federation.train_labels[rows].bincount(minlength=classes) for rows in federation.rows("train")]
    shares = torch.nn.functional.normalize(torch.stack(counts).double(), dim=1)
    return (shares @ shares.T).fill_diagonal_(1)


def aggregation_weights(similarities: Tensor, config: CossimSettings) -> Tensor:
    """Return the aggregation weights A [K, K], computed from the similarities S.

    Entries of S that are at most ``config.cutoff`` become 0. ``config.form`` then selects A:

    - ``weighted``: S, with each row divided by its sum
    - ``indicator``: 1 where S is above the cutoff and 0 elsewhere, with each row divided by its sum
    - ``unnormalized``: S
    """
    kept = similarities > config.cutoff
    weights = kept.double() if config.form == "indicator" else similarities * kept
    if config.form == "unnormalized":
        return weights
    return weights / weights.sum(1, keepdim=True)


def _check(config: CossimSettings, federation: Federation) -> list[str]:
    return ["method.personalization: each client sends its label histogram in addition to its model"]


def _plan(
    config: CossimSettings, state: FederatedState, federation: PersonalFederation, round: int
) -> list[LocalTraining]:
    """Return requests for one epoch of every client, first from theta_0 and then from the aggregated models."""
    if round > config.rounds:
        return []
    starts = aggregated_models(config, state, federation) if round else federation.starts
    return train_all(config, federation, round, starts)


def _fold(
    config: CossimSettings, state: FederatedState, federation: PersonalFederation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    return with_trained(state, stacked_models([result.model for result in trained]), trained)


def aggregated_models(
    config: CossimSettings, state: FederatedState, federation: PersonalFederation
) -> list[ClientModel]:
    """Return one aggregated model per client. The model of client k is sum_i A_ki theta_i.

    A is the matrix of aggregation weights, and theta_i is the current model of client i. Running statistics are
    averaged with the same weights.
    """
    matrix = aggregation_weights(label_similarities(federation), config)
    return client_models({name: weighted_sums(matrix, state[name]) for name in ("theta/weights", "theta/buffers")})


def _rounds(config: CossimSettings, federation: PersonalFederation) -> int:
    return config.rounds + 1


def _points(config: CossimSettings) -> list[Point]:
    """Return all points: one after the first epoch, and two per aggregation (before and after the training)."""
    points = [Point(0, config.epochs, phase="trained")]
    for number in range(1, config.rounds + 1):
        points.append(Point(number, number * config.epochs, phase="combined"))
        points.append(Point(number, (number + 1) * config.epochs, phase="trained"))
    return points


def _measured(
    config: CossimSettings, federation: PersonalFederation, state: FederatedState, round: int
) -> MeasuredModels:
    yield 2 * round, dict(enumerate(client_models(state)))
    if round < config.rounds:
        yield 2 * round + 1, dict(enumerate(aggregated_models(config, state, federation)))


def _finish(config: CossimSettings, federation: PersonalFederation, state: FederatedState, losses: Any) -> Finished:
    similarities = label_similarities(federation)
    matrix = aggregation_weights(similarities, config)
    others = similarities[~torch.eye(len(matrix), dtype=torch.bool)]
    facts = {
        "least": float(others.min()),
        "mean": float(others.mean()),
        "kept": float((matrix > 0).double().sum(1).mean()),
        "sums": float(matrix.sum(1).mean()),
        "leaves": ["model", "label histogram"],
    }
    return {"similarity": similarities, "aggregation": matrix}, {"similarity": facts}


COSSIM = Personalization(init, _plan, _fold, _rounds, _points, _measured, _finish, check=_check)
