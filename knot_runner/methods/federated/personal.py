"""FedPer (Arivazhagan et al. 2019) and FedRep (Collins et al. 2021): a shared body, a personal head for each client.

Both methods are FedAvg with ``method.shared: ["!head"]``: the server averages the bodies of the participants, and each
client keeps its head. FedPer trains head and body together. FedRep trains the head first, then the body. As in FedWaD's
public code, the head is the last linear layer.

Differences from the papers: all clients have the same initial head. A client that has not trained uses the global body
with the initial head, as in PFLlib. With ``first_head=averaged``, clients also send their heads. A client that has not
trained then uses the mean of these heads, as in FedWaD's public code.

A server that distills (FedDF) also receives the clients' heads. It trains the averaged model on the outputs of the
clients' models. The clients' heads do not change.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from knot_runner.config.settings.methods.algorithms import FedPerSettings, FedRepSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase
from knot_runner.methods.contract import ClientMessage, ClientWork, Method
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.averaging import drawn_requests, local_request, shared_of
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.errors import UserError


def init(config: FedPerSettings, federation: Federation) -> FederatedState:
    """Return the state with the initial global model.

    Raises:
        UserError: The model has only a head, or all local epochs train the head and none trains the body.
    """
    if not federation.layout.mask("body").any():
        raise UserError(
            f"method.algorithm={config.algorithm} shares all layers except the head, but this model has only a head. "
            "Use at least one hidden layer",
            "model.hidden",
        )
    epochs = federation.training.local_epochs
    if isinstance(config, FedRepSettings) and (config.head_epochs or 0) >= epochs:
        raise UserError(
            f"expected more than {config.head_epochs} (method.head_epochs), got {epochs}, because the body needs one",
            "training.local_epochs",
        )
    return averaging.init(config, federation)


def plan(config: FedPerSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Return one training request per participant.

    With ``final_head_epochs``, an additional last round trains all clients' heads.
    """
    start = partial(deployed, config, state, federation)
    requests = drawn_requests(config, federation, round, start)
    if round == federation.training.rounds and config.final_head_epochs:
        for client in federation.numbers:
            request = local_request(config, federation, round, client, start(client))
            requests.append(_in_phases(request, Phase(config.final_head_epochs, "head")))
    elif isinstance(config, FedRepSettings):
        requests = [_head_then_body(config, request) for request in requests]
    return requests


def message(config: FedPerSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return the client's message to the server.

    If the client trained only its head, the message is {}. Otherwise, the message holds the update of the body, and
    also the update of the head if the server needs the clients' heads.
    """
    if all(phase.trains == "head" for phase in work.requests[0].recipe.phases):
        return {}
    shared = shared_of(config, federation)
    if config.first_head == "averaged" or config.server_distillation is not None:
        shared = slice(None)
    return averaging.changes(config, state, work, shared)


def received(config: FedPerSettings, state: FederatedState, federation: Federation, client: int) -> ClientMessage:
    """Return the server's message to a client: the global body and, with ``first_head=averaged``, the mean head.

    Clients that do not have a head of their own use the mean head.
    """
    parts = averaging.received(config, state, federation, client)
    if config.first_head == "averaged":
        return parts | {"weights": state["weights"]}
    return parts


def deployed(config: FedPerSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """Return the global body with the client's own head.

    A client that has no head of its own uses the head that ``method.first_head`` selects.
    """
    model = averaging.deployed(config, state, federation, client)
    if config.first_head == "averaged" or f"client/{client}/unshared" in state:
        return model
    weights = torch.where(federation.layout.mask("head"), federation.model.weights, model.weights)
    return ClientModel(weights, model.buffers)


def _head_then_body(config: FedRepSettings, request: LocalTraining) -> LocalTraining:
    epochs = request.recipe.epochs
    head = config.head_epochs or epochs - 1
    return _in_phases(request, Phase(head, "head"), Phase(max(epochs - head, 1), "body"))


def _in_phases(request: LocalTraining, *phases: Phase) -> LocalTraining:
    return replace(request, recipe=replace(request.recipe, phases=phases))


#: FedPer and FedRep
SHARED_BODY = Method(init, plan, message, averaging.fold, deployed, received=received, one_model=False)
