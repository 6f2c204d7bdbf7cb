"""Ditto (Li et al. 2021, Algorithm 1): FedAvg, and beside it each client's own model, held near the global one.

A participant trains the model w that it was sent, which is averaged, and its own v on

    f(v) + lam / 2 ||v - w||^2

Both see the same batches in the same order, and the same augmentation and dropout: draws are of (seed, round, client).

Differences from the paper: a client's v begins at the w of the first round that it takes part in, as it deploys w until
then; the paper begins at the first model of all.

State, beyond FedAvg's: ``client/<k>/weights`` and ``client/<k>/buffers``, the own models of clients that have trained.
"""

from __future__ import annotations

from dataclasses import replace

from knot_runner.config.settings.methods.algorithms import DittoSettings
from knot_runner.config.settings.methods.federated import AveragingSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase
from knot_runner.methods.contract import ClientWork
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import kept_model, own
from knot_runner.methods.federation import FederatedState, Federation, RoundRow


def plan(config: DittoSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Return requests for every participant's part of the global model, then for every participant's own model."""
    requests = averaging.plan(config, state, federation, round)
    return requests + [_own_request(config, state, federation, request) for request in requests]


def observe(works: list[ClientWork]) -> RoundRow:
    """Return the mean loss of the own models."""
    return {"own_loss": sum(work.trained[1].loss for work in works) / len(works)}


def deployed(config: AveragingSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the client's own model, the last that it trained; the global one while it has none."""
    return kept_model(state, client) or averaging.deployed(config, state, federation, client)


def _own_request(
    config: DittoSettings, state: FederatedState, federation: Federation, sent: LocalTraining
) -> LocalTraining:
    """Return the training of a participant's own model; ``sent``: its part of the global one.

    The proximal term pulls towards the model that a request starts from; a constant gradient of lam (v_start - w) makes
    up the difference.
    """
    model = kept_model(state, sent.client)
    phases = (Phase(config.personal_epochs),) if config.personal_epochs else sent.recipe.phases
    rate = sent.recipe.lr
    if config.personal_lr is not None:  # with lr_control a rate includes the temperature
        rate *= config.personal_lr / federation.training.lr
    recipe = replace(sent.recipe, phases=phases, lr=rate, proximal=config.lambda_)
    if model is None:
        return replace(sent, recipe=recipe)
    control = config.lambda_ * (model.weights - sent.start.weights) if config.lambda_ else None
    return replace(sent, start=model, recipe=recipe, control=control)


DITTO = replace(averaging.FEDAVG, plan=plan, deployed=deployed, own=own, observe=observe, one_model=False)
