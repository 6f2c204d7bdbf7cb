"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates correct each client's drift.

c is the control variate of the server, c_k is the control variate of client k, and g is the gradient. In round t,
client k takes K steps from w_t with the learning rate eta. The client then changes its control variate c_k to c_k+:

    w_k <- w_k - eta (g(w_k) + c - c_k)  (line 10),    c_k+ - c_k = (w_t - w_k) / (K eta) - c  (line 12)

The server averages as in FedAvg. The server changes c by the mean of c_k+ - c_k, multiplied by the fraction of clients
that took part (line 17).

Differences from the paper: with privacy, the change of c_k is clipped before it is sent. The client then adds the
clipped change to c_k, so that c remains the mean of all c_k. This follows DP-SCAFFOLD (Noble, Bellet and Dieuleveut
2022). DP-SCAFFOLD protects each example, whereas we protect each client.

State, in addition to FedAvg's:

- ``control`` [P]: c
- ``client/<k>/control`` [P]: c_k; without this entry, c_k is 0
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from knot_runner.config.settings.methods.federated import AveragingSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.methods.contract import ClientMessage, ClientWork, Method
from knot_runner.methods.federated import averaging
from knot_runner.methods.federated.own_models import plan_with
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.util.errors import UserError


def init(config: AveragingSettings, federation: Federation) -> FederatedState:
    """Return the state with the initial global model.

    Raises:
        UserError: The optimizer is not plain SGD.
    """
    if federation.training.optimizer != "sgd":
        raise UserError("the control variates of scaffold require plain SGD. Use sgd", "training.optimizer")
    if federation.training.momentum:
        raise UserError(
            f"expected 0, got {federation.training.momentum:g}: the control variates of scaffold require plain SGD",
            "training.momentum",
        )
    return averaging.init(config, federation)


def corrected(
    config: AveragingSettings, state: FederatedState, federation: Federation, request: LocalTraining
) -> LocalTraining:
    """Return ``request`` with a correction added to every gradient (SCAFFOLD, line 10 of Algorithm 1).

    The correction is the server's control variate minus the client's control variate.
    """
    own = control_of(state, f"client/{request.client}/control")
    return replace(request, control=control_of(state, "control") - own)


def message(
    config: AveragingSettings, state: FederatedState, federation: Federation, work: ClientWork
) -> ClientMessage:
    """Return FedAvg's message and ``control``, the change of the client's control variate.

    By line 12 of Algorithm 1, this change is ``(w - w_k) / (K * lr) - c``. Here, w is the received model, w_k is the
    model after K local steps, and c is the server's control variate.
    """
    request = work.requests[0]
    result = work.trained[0]
    moved = (request.start.weights - result.weights).double()
    change = moved / (result.steps * request.recipe.lr) - control_of(state, "control").double()
    parts = averaging.message(config, state, federation, work)
    return parts | {"control": change.to(request.start.weights.dtype)}


def keep(config: AveragingSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return the client's new control variate: its previous value plus the change in the client's message."""
    return {"control": control_of(state, f"client/{work.client}/control") + work.sent["control"]}


def fold(
    config: AveragingSettings, state: FederatedState, federation: Federation, round: int, mean: ClientMessage,
    share: float,
) -> Folded:  # fmt: skip
    """Take FedAvg's server step, and update the server's control variate (line 17 of Algorithm 1).

    Each participant sends the change of its control variate. The mean of these changes is multiplied by ``share``, the
    fraction of clients that took part. The product is added to the server's control variate.
    """
    after, row = averaging.fold(config, state, federation, round, mean, share)
    control = control_of(state, "control")
    return {**after, "control": (control.double() + share * mean["control"]).to(control.dtype)}, row


def control_of(state: FederatedState, name: str) -> Tensor:
    """Return the control variate that ``state`` holds under ``name``, shape [P]; zeros if there is none."""
    return state.get(name, torch.zeros_like(state["weights"]))


def with_control(
    config: AveragingSettings, state: FederatedState, federation: Federation, client: int
) -> ClientMessage:
    """Return the server's message to a client: the model and the server's control variate (line 5 of Algorithm 1)."""
    return averaging.received(config, state, federation, client) | {"control": control_of(state, "control")}


SCAFFOLD = Method(
    init, plan_with(corrected), message, fold, averaging.deployed, keep=keep, received=with_control,
    unweighted=("control",),
)  # fmt: skip
