"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates c, c_k correct each client's drift.

State, beyond FedAvg's: ``control`` [P], and ``control/<client>`` [P] of clients that have taken part (others are 0).
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.contract import Method
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federated.traffic import MODELS_AND_CONTROLS
from knot_runner.methods.federated.versions import as_begun
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.errors import UserError


def init(hp: FederatedSettings, federation: Federation) -> FederatedState:
    """The first global model; all controls are 0. Raises :class:`UserError` for anything but plain SGD."""
    if federation.training.optimiser != "sgd":
        raise UserError("training.optimiser: scaffold's control variates are defined for plain SGD; sgd is right")
    if federation.training.momentum:
        raise UserError(
            f"training.momentum: {federation.training.momentum:g} does not go with scaffold, whose control variates "
            "are defined for plain SGD; 0 is right"
        )
    return averaging.init(hp, federation)


def plan(hp: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """FedAvg's requests, with c - c_k added to every gradient (line 10)."""
    requests = averaging.plan(hp, state, federation, round)
    server = control_of(state, "control")
    return [dataclasses.replace(r, control=server - control_of(state, f"control/{r.client}")) for r in requests]


def fold(
    hp: FederatedSettings,
    state: FederatedState,
    federation: Federation,
    round: int,
    requests: list[LocalTraining],
    trained: list[Trained],
) -> tuple[FederatedState, dict[str, float]]:
    """FedAvg's fold, and c_k+ = c_k - c + (w - w_k) / (K lr) (line 12), c + sum (c_k+ - c_k) / N (line 17). In private
    training as :mod:`private_scaffold` has it. A client that began with an older c corrects by that one, and adds as
    much to c as to its own, so that c stays the mean of all c_k."""
    if federation.privacy is not None:
        from knot_runner.methods.federated.private_scaffold import private_fold

        return private_fold(hp, state, federation, round, requests, trained)
    after, _ = averaging.fold(hp, state, federation, round, requests, trained)
    server = control_of(state, "control")
    total = torch.zeros(server.shape, dtype=torch.float64)
    for request, result in zip(requests, trained, strict=True):
        begun = control_of(as_begun(hp, state, request.round, round), "control")
        change = control_change(begun, request, result)
        after[f"control/{request.client}"] = moved_control(state, request.client, change)
        total += change
    after["control"] = (server.double() + total / len(federation)).to(server.dtype)
    return after, {}


def control_of(state: FederatedState, name: str) -> Tensor:
    """The control variate ``name`` [P]; zeros while nobody has changed it."""
    return state.get(name, torch.zeros_like(state["weights"]))


def control_change(server: Tensor, request: LocalTraining, result: Trained) -> Tensor:
    """c_k+ - c_k = (w - w_k) / (K lr) - c, [P] in float64, for the ``server``'s c that it began with: what it sends."""
    moved = (request.start.weights - result.weights).double()
    return moved / (result.steps * request.recipe.lr) - server.double()


def moved_control(state: FederatedState, client: int, change: Tensor) -> Tensor:
    """The control variate of ``client`` [P] after a ``change`` of it."""
    own = control_of(state, f"control/{client}")
    return (own.double() + change).to(own.dtype)


SCAFFOLD = Method(init, plan, fold, averaging.deployed, exchange=DISTILLATION, traffic=MODELS_AND_CONTROLS)
