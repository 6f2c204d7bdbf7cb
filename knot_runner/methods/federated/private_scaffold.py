"""Private SCAFFOLD: a client's whole message, model and control variate, is clipped as one vector and covered by noise.

After DP-SCAFFOLD (Noble, Bellet and Dieuleveut 2022), whose clients add noise to the gradients of their examples. Here
the unit is the client, as in DP-FedAvg. With C, z, q and K of :mod:`user_privacy`, and a fixed scale s = S lr,

    u_k = clip((w_k - w, s (c_k+ - c_k))),  (U, V) = sum_k u_k + N(0, z^2 C^2 I),  w + U / (q K),  c + V / (s K).

One client changes (U, V) by at most C, and the server sees nothing else. A client changes its own c_k, which is not
sent, by what it has sent: without noise c stays the mean of all c_k, so that corrections still add up to nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.federated import averaging, scaffold, server
from knot_runner.methods.federated.user_privacy import norms_row, private_sum, shrinks_by
from knot_runner.methods.federation import FederatedState, Federation


def private_fold(
    hp: FederatedSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> tuple[FederatedState, dict[str, Any]]:  # fmt: skip
    """The state after a round, and the norms of the clients' messages before clipping. Without participants there is
    noise alone."""
    privacy, before = federation.privacy, state["weights"].double()
    control, scale = scaffold.control_of(state, "control"), privacy.control_scale

    def message(request: LocalTraining, result: Trained) -> Tensor:
        change = scaffold.control_change(control, request, result)
        return torch.cat([result.weights.double() - before, scale * change])

    zeros = torch.zeros(2 * len(before), dtype=torch.float64)
    total, norms = private_sum(privacy, federation.seed, round, zeros, map(message, requests, trained))
    moved, turned = total.split(len(before))
    mean = (before + moved / privacy.participants).to(state["weights"].dtype)
    after = server.step_towards(hp, state, mean) | averaging.own_statistics(hp, trained)
    after["control"] = (control.double() + turned / (scale * privacy.clients)).to(control.dtype)
    for request, result, norm in zip(requests, trained, norms, strict=True):
        change = shrinks_by(privacy, norm) * scaffold.control_change(control, request, result)
        after[f"control/{request.client}"] = scaffold.moved_control(state, request.client, change)
    return after, norms_row(privacy, norms)
