"""Ditto (Li et al. 2021, Algorithm 1): FedAvg, and beside it each client's own model, held near the global one.

A participant trains the model w that it was sent, which is averaged, and its own v on f(v) + lam / 2 ||v - w||^2. Both
see the same batches in the same order, and the same augmentation and dropout: draws are of (seed, round, client). A
client's v begins at the w of the first round that it takes part in, as it deploys w until then; the paper begins at the
first model of all.
State, beyond FedAvg's: ``client/<k>/weights`` and ``client/<k>/buffers``, the own models of clients that have trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from knot_runner.config.settings import DittoSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.engine.federated.recipe import Phase
from knot_runner.methods.contract import Exchange, Method
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import kept_model, kept_models
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federation import FederatedState, Federation, Folded


def plan(hp: DittoSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Every participant's part of the global model; then, in the same order, every participant's own model."""
    requests = averaging.plan(hp, state, federation, round)
    return requests + [_own_request(hp, state, federation, request) for request in requests]


def fold(
    hp: DittoSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """FedAvg's fold of the first half; the second half are own models, which are not sent."""
    half = len(trained) // 2
    after, row = averaging.fold(hp, state, federation, round, requests[:half], trained[:half])
    own = trained[half:]
    if own:  # private draws may leave a round empty
        row["own_loss"] = sum(result.loss for result in own) / len(own)
    return after | kept_models(own), row


def deployed(hp: DittoSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """The client's own model; the global one while it has none."""
    return kept_model(state, client) or averaging.deployed(hp, state, federation, client)


def _own_request(
    hp: DittoSettings, state: FederatedState, federation: Federation, sent: LocalTraining
) -> LocalTraining:
    """The training of a participant's own model; ``sent``: its part of the global one.

    The proximal term pulls towards the model that a request starts from; a constant gradient of lam (v_start - w) makes
    up the difference.
    """
    model = kept_model(state, sent.client)
    phases = (Phase(hp.personal_epochs),) if hp.personal_epochs else sent.recipe.phases
    rate = sent.recipe.lr
    if hp.personal_lr is not None:  # with lr_control a rate includes the temperature
        rate *= hp.personal_lr / federation.training.lr
    recipe = dataclasses.replace(sent.recipe, phases=phases, lr=rate, proximal=hp.lambda_)
    if model is None:
        return dataclasses.replace(sent, recipe=recipe)
    control = hp.lambda_ * (model.weights - sent.start.weights) if hp.lambda_ else None
    return dataclasses.replace(sent, start=model, recipe=recipe, control=control)


def _of_sent(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of the server's distillation, of the models that were sent: the first half of what a round trained."""

    def of_sent(
        hp: DittoSettings, state: FederatedState, federation: Federation, round: int, trained: list[Trained],
        *results: Any,
    ) -> Any:  # fmt: skip
        return step(hp, state, federation, round, trained[: len(trained) // 2], *results)

    return of_sent


_DISTILLATION = Exchange(
    _of_sent(DISTILLATION.plan_inference), _of_sent(DISTILLATION.plan_training), _of_sent(DISTILLATION.fold)
)
DITTO = Method(averaging.init, plan, fold, deployed, one_model=False, exchange=_DISTILLATION)
