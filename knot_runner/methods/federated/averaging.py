"""FedAvg (McMahan et al. 2017, Algorithm 1) and FedProx (Li et al. 2020): train from the global model, then average.

State: ``weights``, ``buffers``; ``buffers/<client>`` with ``batchnorm=local``; ``server/...`` with a server optimizer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from knot_runner.config.settings import AveragingSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.contract import Method
from knot_runner.methods.federated.chilling import drawn_requests
from knot_runner.methods.federated.server import server_step, step_towards
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow

if TYPE_CHECKING:
    from knot_runner.methods.federated.user_privacy import UserPrivacy


def init(hp: AveragingSettings, federation: Federation) -> FederatedState:
    """The first global model."""
    return {"weights": federation.model.weights, "buffers": federation.model.buffers}


def plan(hp: AveragingSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Every participant trains from the model it has been sent."""
    return drawn_requests(hp, federation, round, functools.partial(deployed, hp, state, federation))


def fold(
    hp: AveragingSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Returns the state with the mean of the trained models; with ``batchnorm=local`` clients keep their running
    statistics. In private training the mean is of clipped updates with noise, and running statistics do not change."""
    row: RoundRow = {}
    if federation.privacy is None:
        state = server_step(hp, state, requests, trained)
    else:
        from knot_runner.methods.federated.user_privacy import private_mean

        mean, row = private_mean(federation.privacy, federation.seed, round, state["weights"], trained)
        state = step_towards(hp, state, mean)
    return state | own_statistics(hp, trained), row


def private_step(
    hp: AveragingSettings, privacy: UserPrivacy, state: FederatedState, federation: Federation, round: int,
    trained: list[Trained], sent: Iterable[Tensor], size: int,
) -> tuple[FederatedState, Tensor, list[float]]:  # fmt: skip
    """Clip and sum messages that are a model's change and what is ``sent`` beside it, [size] of each client, as one
    vector each.

    Returns:
        The state with the stepped global model, the noisy sum [size] of what is sent beside the models, and the norms
        of the messages before clipping.
    """
    from knot_runner.methods.federated.user_privacy import private_sum

    before = state["weights"].double()
    changes = (result.weights.double() - before for result in trained)
    messages = (torch.cat(parts) for parts in zip(changes, sent, strict=True))
    zeros = torch.zeros(len(before) + size, dtype=torch.float64)
    total, norms = private_sum(privacy, federation.seed, round, zeros, messages)
    moved, rest = total.split([len(before), size])
    mean = (before + moved / privacy.participants).to(state["weights"].dtype)
    return step_towards(hp, state, mean) | own_statistics(hp, trained), rest, norms


def deployed(hp: AveragingSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """The global model, with the client's own running statistics if it keeps them."""
    return ClientModel(state["weights"], state.get(f"buffers/{client}", state["buffers"]))


def own_statistics(hp: AveragingSettings, trained: list[Trained]) -> FederatedState:
    """The part of the state that holds the running statistics that clients keep; {} where they keep none."""
    return {f"buffers/{result.client}": result.buffers for result in trained} if hp.batchnorm == "local" else {}


#: FedAvg, and FedProx, whose proximal term is in the objective
FEDAVG = Method(init, plan, fold, deployed, exchange=DISTILLATION)
