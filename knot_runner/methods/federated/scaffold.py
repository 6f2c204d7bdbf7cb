"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates c, c_k correct each client's drift.

State, beyond FedAvg's: ``control`` [P], and ``control/<client>`` [P] of clients that have taken part (others are 0).

Private training: a client's whole message, model and control variate, is clipped as one vector and covered by noise.
After DP-SCAFFOLD (Noble, Bellet and Dieuleveut 2022), whose clients add noise to the gradients of their examples. Here
the unit is the client, as in DP-FedAvg. With C, z, q and K of :mod:`user_privacy`, and a fixed scale s = S lr,

    u_k = clip((w_k - w, s (c_k+ - c_k))),  (U, V) = sum_k u_k + N(0, z^2 C^2 I),  w + U / (q K),  c + V / (s K).

One client changes (U, V) by at most C, and the server sees nothing else. A client changes its own c_k, which is not
sent, by what it has sent: without noise c stays the mean of all c_k, so that corrections still add up to nothing.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from knot_runner.config.settings import AveragingSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.contract import Method
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.costs import MODELS_AND_CONTROLS
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federated.user_privacy import UserPrivacy, norms_row, shrinks_by
from knot_runner.methods.federated.versions import as_begun
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.util.errors import UserError


def init(hp: AveragingSettings, federation: Federation) -> FederatedState:
    """The first global model; all controls are 0. Raises :class:`UserError` for anything but plain SGD."""
    if federation.training.optimizer != "sgd":
        raise UserError("scaffold's control variates are defined for plain SGD; sgd is right", "training.optimizer")
    if federation.training.momentum:
        raise UserError(
            f"{federation.training.momentum:g} does not go with scaffold, whose control variates "
            "are defined for plain SGD; 0 is right",
            "training.momentum",
        )
    return averaging.init(hp, federation)


def plan(hp: AveragingSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """FedAvg's requests, with c - c_k added to every gradient (line 10)."""
    requests = averaging.plan(hp, state, federation, round)
    server = control_of(state, "control")
    return [dataclasses.replace(r, control=server - control_of(state, f"control/{r.client}")) for r in requests]


def fold(
    hp: AveragingSettings, state: FederatedState, federation: Federation, round: int, requests: list[LocalTraining],
    trained: list[Trained],
) -> Folded:  # fmt: skip
    """FedAvg's fold, and c_k+ = c_k - c + (w - w_k) / (K lr) (line 12), c + sum (c_k+ - c_k) / N (line 17). In private
    training as :func:`private_fold` has it. A client that began with an older c corrects by that one, and adds as
    much to c as to its own, so that c stays the mean of all c_k."""
    if federation.privacy is not None:
        return private_fold(hp, federation.privacy, state, federation, round, requests, trained)
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


def private_fold(
    hp: AveragingSettings, privacy: UserPrivacy, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """The state after a round, and the norms of the clients' messages before clipping. Without participants there is
    noise alone."""
    control, scale = control_of(state, "control"), privacy.control_scale
    pairs = list(zip(requests, trained, strict=True))
    sent = (scale * control_change(control, request, result) for request, result in pairs)
    after, turned, norms = averaging.private_step(hp, privacy, state, federation, round, trained, sent, len(control))
    after["control"] = (control.double() + turned / (scale * privacy.clients)).to(control.dtype)
    for (request, result), norm in zip(pairs, norms, strict=True):
        change = shrinks_by(privacy, norm) * control_change(control, request, result)
        after[f"control/{request.client}"] = moved_control(state, request.client, change)
    return after, norms_row(privacy, norms)
