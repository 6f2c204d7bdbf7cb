"""Private FedGen: a client's model and the shares of its labels are clipped as one vector and covered by noise.

With C, z, q and K of :mod:`user_privacy`, p_k the shares of client k's labels, and s = ``label_scale`` C,

    u_k = clip((w_k - w, s p_k)),  (U, V) = sum_k u_k + N(0, z^2 C^2 I),  w + U / (q K),  labels in proportion to V.

The generator learns from the last layer of the new global model, in the place of each client's own: the server sees
nothing else. Ours: no paper has this message.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import Trained
from knot_runner.methods.federated import averaging, server
from knot_runner.methods.federated.fedgen import counts_by_label
from knot_runner.methods.federated.user_privacy import norms_row, private_sum
from knot_runner.methods.federation import FederatedState, Federation

#: Noisy shares of labels are counts of so many examples.
MILLION = 1_000_000


def private_fold_labels(
    hp: FederatedSettings, state: FederatedState, federation: Federation, round: int, trained: list[Trained]
) -> tuple[FederatedState, Tensor, dict[str, Any]]:
    """(The state with the stepped global model; counts [C] of the labels, in noisy proportions, all alike where noise
    leaves none; norms of the clients' messages before clipping)."""
    privacy, before = federation.privacy, state["weights"].double()

    def message(result: Trained) -> Tensor:
        counts = counts_by_label(federation, result).double()
        return torch.cat([result.weights.double() - before, privacy.label_scale * counts / counts.sum()])

    zeros = torch.zeros(len(before) + len(federation.labels.names), dtype=torch.float64)
    total, norms = private_sum(privacy, federation.seed, round, zeros, map(message, trained))
    moved, shares = total[: len(before)], total[len(before) :].clamp_min(0)
    if not shares.any():
        shares = torch.ones_like(shares)
    mean = (before + moved / privacy.participants).to(state["weights"].dtype)
    after = server.step_towards(hp, state, mean) | averaging.own_statistics(hp, trained)
    return after, (MILLION * shares / shares.sum()).round().long(), norms_row(privacy, norms)
