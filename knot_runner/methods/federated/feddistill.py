"""Federated distillation by labels (FD, Jeong et al. 2018): clients send the mean logits of each label, nothing else.

A client minimizes CE with the true label plus ``weight`` times that with the others' mean logits of that label; its
model stays its own. State, beyond :mod:`own_models`: ``label_logits/<k>`` [C, C], row y the mean logits of client k for
its examples of label y, and ``label_counts/<k>`` [C], how many these were, of clients that have taken part. In private
training ``label_logits/all`` and ``label_counts/all`` instead: clients send the mean logits of each of their labels,
and which labels these are, as one vector, of n = 2 C rows. With z and B = ``clip_logits`` of :mod:`user_privacy`,

    u_k = (means [C, C], B present [C]),  (M, N) = sum_k min(1, B sqrt(2 C) / |u_k|) u_k + N(0, 2 C z^2 B^2 I),

and of a label y that max(N_y / B, 1) clients have, the mean is M_y over that; below half a client it is unknown. A
client learns these means of the last round's participants, itself among them. Ours: no paper has this message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings import FedDistillSettings
from knot_runner.engine.federated.cohort import Inference, LocalTraining, Trained
from knot_runner.engine.objectives import LossRows, Objective, ObjectiveInputs, SampleLoss, cross_entropy
from knot_runner.methods.contract import Exchange, Method
from knot_runner.methods.federated import own_models
from knot_runner.methods.federated.costs import LABEL_LOGITS
from knot_runner.methods.federated.user_privacy import UserPrivacy, logits_privacy, norms_row, private_sum
from knot_runner.methods.federation import FederatedState, Federation, Folded

#: Settings of the objective that the cross-entropy does not have.
OF_LABELS = ("weight", "label_temperature")


def plan_regularized(
    hp: FedDistillSettings, state: FederatedState, federation: Federation, round: int
) -> list[LocalTraining]:
    """Requests training of every participant's own model on its own examples, regularized towards the others' latest
    logits."""
    found = []
    for request in own_models.plan(hp, state, federation, round):
        means = others_means(state, federation, request.client)
        if means is None:
            found.append(request)
            continue
        (logits, known), labels, spec = means, federation.train_labels[request.rows], hp.labels
        own = {"weight": spec.weight, "label_temperature": spec.temperature}
        objective = Objective(label_distillation, {**request.objective.settings, **own})
        inputs = {"label_logits": logits[labels].to(request.start.weights.dtype), "known": known[labels]}
        found.append(dataclasses.replace(request, objective=objective, inputs=inputs))
    return found


def others_means(state: FederatedState, federation: Federation, client: int) -> tuple[Tensor, Tensor] | None:
    """(Mean logits [C, C], float64, of each label over the other clients that have sent some of it, whether there are
    any [C]); None before another has sent anything. In private training those of the last round's participants, the
    same for everybody."""
    if "label_counts/all" in state:
        return state["label_logits/all"].double(), state["label_counts/all"] > 0
    sent = [other for other in federation.numbers if other != client and f"label_logits/{other}" in state]
    if not sent:
        return None
    logits = torch.stack([state[f"label_logits/{other}"].double() for other in sent])
    has = torch.stack([state[f"label_counts/{other}"] for other in sent]) > 0
    total = (logits * has[:, :, None]).sum(0)
    return total / has.sum(0).clamp_min(1)[:, None], has.any(0)


def label_distillation(settings: dict[str, Any], inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """CE(z, y) as ``cross_entropy`` has it, plus weight CE(z / tau, softmax(F_y / tau)), F_y the others' mean
    logits, for examples whose label others know.

    ``inputs.tensors``: ``label_logits`` [n, C], F_y of each example, and ``known`` [n].
    """
    rows, hard = cross_entropy({key: value for key, value in settings.items() if key not in OF_LABELS}, inputs)
    weight, tau = float(settings["weight"]), float(settings["label_temperature"])

    def loss(logits: Tensor, own: LossRows) -> Tensor:
        target = torch.softmax(own["label_logits"] / tau, 1)
        distance = F.cross_entropy(logits / tau, target, reduction="none")
        return hard(logits, own) + weight * distance * own["known"]

    return rows | {"label_logits": inputs.tensors["label_logits"], "known": inputs.tensors["known"]}, loss


def own_inferences(
    hp: FedDistillSettings, state: FederatedState, federation: Federation, round: int, trained: list[Trained]
) -> list[Inference]:
    """Requests inference of each participant's trained model on its own training examples."""
    return [
        federation.inference(result.client, result.model, federation.clients[result.client].train, "train")
        for result in trained
    ]


def no_training(*_: Any) -> list[LocalTraining]:
    """The server trains nothing."""
    return []


def fold_label_means(
    hp: FedDistillSettings, state: FederatedState, federation: Federation, round: int, trained: list[Trained],
    logits: list[Tensor], distilled: list[Trained],
) -> Folded:  # fmt: skip
    """Stores what each participant sends: mean logits and count of each of its labels; in private training the noisy
    means of all of them."""
    if federation.privacy is not None:
        shared, row = private_label_means(federation.privacy, federation, round, trained, logits)
        return {**state, **shared}, row
    sent: FederatedState = {}
    for result, own in zip(trained, logits, strict=True):
        means, counts = means_by_label(federation, result.client, own)
        sent[f"label_logits/{result.client}"] = means.to(own.dtype)
        sent[f"label_counts/{result.client}"] = counts
    return {**state, **sent}, {}


def private_label_means(
    privacy: UserPrivacy, federation: Federation, round: int, trained: list[Trained], logits: list[Tensor]
) -> Folded:
    """(``label_logits/all`` [C, C] and ``label_counts/all`` [C], the noisy means of the participants' mean logits and
    how many clients they are of, 0 where that is unknown; the norms of what each sends). ``logits``: each client's of
    its own training examples."""
    classes = len(federation.labels.names)
    privacy, scale = logits_privacy(privacy, 2 * classes), privacy.clip_logits

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


def means_by_label(federation: Federation, client: int, logits: Tensor) -> tuple[Tensor, Tensor]:
    """(Mean of the ``logits`` [n, C] that the client gives its training examples, for each label [C, C], float64, 0
    without any; how many it has of each [C])."""
    labels = federation.train_labels[federation.clients[client].train]
    counts = torch.bincount(labels, minlength=logits.shape[1])
    total = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.float64).index_add_(0, labels, logits.double())
    return total / counts.clamp_min(1)[:, None], counts


FEDDISTILL = Method(
    own_models.init,
    plan_regularized,
    own_models.fold,
    own_models.deployed,
    one_model=False,
    exchange=Exchange(own_inferences, no_training, fold_label_means, answered_by="clients"),
    traffic=LABEL_LOGITS,
)
