"""Ditto (Li et al. 2021, Algorithm 1): FedAvg and, for each client, a personal model that stays near the global model.

A participant trains two models. As in FedAvg, it trains the received global model w and sends the update. In addition,
it trains its personal model v on its local loss f with a penalty on the distance from w:

    f(v) + lam / 2 ||v - w||^2

Both trainings use the same batches in the same order, with the same augmentation and dropout.

Difference from the paper: a client's v starts from the w of the first round in which the client takes part. In the
paper, v starts from the first global model.

State, in addition to FedAvg's: ``client/<k>/weights`` and ``client/<k>/buffers``, the personal models of clients that
have trained.
"""

from __future__ import annotations

from dataclasses import replace

from knot_runner.config.settings.methods.algorithms import DittoSettings
from knot_runner.config.settings.methods.federated import AveragingSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase
from knot_runner.methods.contract import ClientWork
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import keep, kept_model
from knot_runner.methods.federation import FederatedState, Federation, RoundRow


def plan(config: DittoSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Return two requests for every participant: one trains the global model, and one trains the personal model.

    All requests for the global model come before the requests for personal models.
    """
    requests = averaging.plan(config, state, federation, round)
    # Both requests of a client have the same seed, round and client. They therefore have the same batches and dropout.
    return requests + [_own_request(config, state, federation, request) for request in requests]


def observe(works: list[ClientWork]) -> RoundRow:
    """Return the log entry ``own_loss``, the mean training loss of the personal models."""
    return {"own_loss": sum(work.trained[1].loss for work in works) / len(works)}


def deployed(config: AveragingSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the client's latest personal model; the global model if the client has not trained."""
    return kept_model(state, client) or averaging.deployed(config, state, federation, client)


def _own_request(
    config: DittoSettings, state: FederatedState, federation: Federation, sent: LocalTraining
) -> LocalTraining:
    """Return the request that trains a participant's personal model.

    ``sent``: the participant's request that trains the global model. The engine's proximal term penalizes the distance
    from the model that a request starts from, v_start. Adding the constant lam (v_start - w) to the gradient turns this
    into a penalty on the distance from w.
    """
    recipe = replace(sent.recipe, proximal=config.lambda_)
    if config.personal_epochs:
        recipe = replace(recipe, phases=(Phase(config.personal_epochs),))
    if config.personal_lr is not None:  # with lr_control, the learning rate includes the temperature
        recipe = replace(recipe, lr=recipe.lr * (config.personal_lr / federation.training.lr))
    model = kept_model(state, sent.client)
    # v starts from the received w, because the client has deployed w until now.
    if model is None:
        return replace(sent, recipe=recipe)
    control = None
    if config.lambda_:
        control = config.lambda_ * (model.weights - sent.start.weights)
    return replace(sent, start=model, recipe=recipe, control=control)


DITTO = replace(averaging.FEDAVG, plan=plan, deployed=deployed, keep=keep, observe=observe, one_model=False)
