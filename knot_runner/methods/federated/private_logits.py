"""Private logits: what clients say of examples is clipped, summed, noised and divided, as their models are.

A client's logits z_k [n, C] of n public examples, less the mean of each row, which changes no probability, are one
vector. With z, q and K of :mod:`user_privacy` and B = ``clip_logits``, the bound of an example in the root mean square,

    mean = (sum_k min(1, B sqrt(n) / |z_k|) z_k + N(0, z^2 B^2 n I)) / (q K).

This mean is all that a distilling server, or a client of FedMD, learns of the clients' logits. FD's clients send the
mean logits of each of their labels, and which labels these are, again as one vector, of n = 2 C rows:

    u_k = (means [C, C], B present [C]),  (M, N) = sum_k min(1, B sqrt(2 C) / |u_k|) u_k + N(0, 2 C z^2 B^2 I),

and of a label y that max(N_y / B, 1) clients have, the mean is M_y over that; below half a client it is unknown. A
client learns these means of the last round's participants, itself among them. Ours: no paper has these messages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import Trained
from knot_runner.methods.federated.feddistill import means_by_label
from knot_runner.methods.federated.user_privacy import UserPrivacy, norms_row, private_sum
from knot_runner.methods.federation import FederatedState, Federation


def private_mean_logits(federation: Federation, round: int, rows: int, logits: list[Tensor]) -> Tensor:
    """The noisy mean [n, C] of the ``logits`` (each [n, C]) of a round's participants, of ``rows`` = n examples, in the
    precision of the models. Without participants there is noise alone."""
    privacy, classes = _bounded(federation.privacy, rows), len(federation.labels.names)
    zeros = torch.zeros(rows, classes, dtype=torch.float64)
    total, _ = private_sum(privacy, federation.seed, round, zeros, _centred(logits), "logits")
    return (total / privacy.participants).to(federation.architectures[0].start.weights.dtype)


def logits_row(federation: Federation, logits: list[Tensor]) -> dict[str, list[float] | float]:
    """A round's log entries, as of models (:func:`~knot_runner.methods.federated.user_privacy.norms_row`)."""
    norms = [float(own.norm()) for own in _centred(logits)]
    return norms_row(_bounded(federation.privacy, len(logits[0]) if logits else 0), norms)


def private_label_means(
    federation: Federation, round: int, trained: list[Trained], logits: list[Tensor]
) -> tuple[FederatedState, dict[str, Any]]:
    """(``label_logits/all`` [C, C] and ``label_counts/all`` [C], the noisy means of the participants' mean logits and
    how many clients they are of, 0 where that is unknown; the norms of what each sends). ``logits``: each client's of
    its own training examples."""
    classes = len(federation.labels.names)
    privacy = _bounded(federation.privacy, 2 * classes)
    scale = federation.privacy.clip_logits

    def messages() -> Iterator[Tensor]:
        for result, own in zip(trained, logits, strict=True):
            means, counts = means_by_label(federation, result.client, own)
            means = means - means.mean(1, keepdim=True)
            yield torch.cat([means, scale * (counts > 0).double()[:, None]], 1)

    zeros = torch.zeros(classes, classes + 1, dtype=torch.float64)
    total, norms = private_sum(privacy, federation.seed, round, zeros, messages(), "labels")
    counts = total[:, classes] / scale
    counts = torch.where(counts > 0.5, counts.clamp_min(1), 0.0)
    means = total[:, :classes] / counts.clamp_min(1)[:, None]
    dtype = federation.architectures[0].start.weights.dtype
    return {"label_logits/all": means.to(dtype), "label_counts/all": counts}, norms_row(privacy, norms)


def _bounded(privacy: UserPrivacy, rows: int) -> UserPrivacy:
    """``privacy`` whose bound is that of ``rows`` examples' logits; without one where models are not clipped either."""
    bound = None if privacy.clip_norm is None else privacy.clip_logits * math.sqrt(rows)
    return dataclasses.replace(privacy, clip_norm=bound)


def _centred(logits: list[Tensor]) -> Iterator[Tensor]:
    for own in logits:
        yield own.double() - own.double().mean(1, keepdim=True)
