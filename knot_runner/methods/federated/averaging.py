"""FedAvg (McMahan et al. 2017, Algorithm 1) and FedProx (Li et al. 2020): train from the global model, then average.

State: ``weights`` [P], ``buffers`` [Q]; ``server/...`` with a server optimizer; ``client/<k>/unshared``, the parameters
that ``method.shared`` leaves out, and ``client/<k>/statistics`` with ``batchnorm=local``.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from knot_runner.config.settings import AveragingSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining
from knot_runner.methods.contract import ClientMessage, ClientWork, Method
from knot_runner.methods.federated.chilling import drawn_requests
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.methods.messages import shared_of


def init(config: AveragingSettings, federation: Federation) -> FederatedState:
    """The first global model."""
    return {"weights": federation.model.weights, "buffers": federation.model.buffers}


def plan(config: AveragingSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Every participant trains from the model it has been sent."""
    return drawn_requests(config, federation, round, functools.partial(deployed, config, state, federation))


def message(
    config: AveragingSettings, state: FederatedState, federation: Federation, work: ClientWork
) -> ClientMessage:
    """w_k - w of the shared parameters, and the change of the running statistics, which may not be frozen."""
    return changes(config, state, work, shared_of(config, federation))


def changes(config: AveragingSettings, state: FederatedState, work: ClientWork, shared: Tensor | None) -> ClientMessage:
    """The change of the ``shared`` parameters (bool [P]; None: all) and of the running statistics."""
    result = work.trained[0]
    change = result.weights - state["weights"]
    parts = {"update": change if shared is None else change[shared]}
    if len(result.buffers) and config.batchnorm != "frozen":
        parts["statistics"] = result.buffers - state["buffers"]
    return parts


def fold(
    config: AveragingSettings,
    state: FederatedState,
    federation: Federation,
    round: int,
    mean: ClientMessage,
    share: float,
) -> Folded:
    """The server's step of the global model w along the mean update d [P]; statistics move by their mean change.

    ``none``: w + lr d; ``momentum`` (FedAvgM): v = beta1 v + d, w + lr v; ``adam`` (FedAdam, Reddi et al. 2021,
    Algorithm 2): w + lr m / (sqrt(v) + tau).
    """
    server, move, after = config.server, mean["update"].double(), dict(state)
    shared = shared_of(config, federation)
    if shared is not None and len(move) < len(shared):
        move = torch.zeros(len(shared), dtype=torch.float64).masked_scatter(shared, move)
    if "statistics" in mean:
        after["buffers"] = _moved(state["buffers"], mean["statistics"])
    if server.optimizer == "momentum":
        move = server.beta1 * _moment(state, "server/velocity", move) + move
        after["server/velocity"] = move
    elif server.optimizer == "adam":
        first = server.beta1 * _moment(state, "server/first", move) + (1 - server.beta1) * move
        second = server.beta2 * _moment(state, "server/second", move) + (1 - server.beta2) * move.square()
        after |= {"server/first": first, "server/second": second}
        move = first / (second.sqrt() + server.tau)
    return {**after, "weights": _moved(state["weights"], server.lr * move)}, {}


def deployed(config: AveragingSettings, state: FederatedState, federation: Federation, client: int) -> ClientModel:
    """The global model, with the parameters and the running statistics that the client keeps for itself."""
    weights = state["weights"]
    unshared, shared = state.get(f"client/{client}/unshared"), shared_of(config, federation)
    if unshared is not None and shared is not None:
        weights = weights.clone()
        weights[~shared] = unshared
    return ClientModel(weights, state.get(f"client/{client}/statistics", state["buffers"]))


def _moved(vector: Tensor, change: Tensor) -> Tensor:
    return (vector.double() + change).to(vector.dtype)


def _moment(state: FederatedState, name: str, like: Tensor) -> Tensor:
    return state.get(name, torch.zeros_like(like))


#: FedAvg, and FedProx, whose proximal term is in the objective
FEDAVG = Method(init, plan, message, fold, deployed)
