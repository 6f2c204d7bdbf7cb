"""Federated distillation by labels (FD, Jeong et al. 2018): clients send only their mean logits for each label.

Each client keeps its own model. Let z be the client's logits for an example with label y, and F_y the mean logits of
the other clients for examples with label y. The client minimizes

    CE(z, y) + weight CE(z / tau, softmax(F_y / tau))

Differences from the paper: with privacy, the server reads only means of messages. F_y is then the mean over all
participants of the previous round, including the client itself. The server estimates N_y, the number of participants
that have examples of label y, from the noisy mean of the messages. If N_y is above one half, F_y is the sum of the
participants' logits divided by max(N_y, 1). Otherwise F_y is unknown. This private variant is our own design.

State, in addition to that of :mod:`own_models`:

- ``label_logits/<k>`` [C, C]: row y holds the mean logits of client k for its examples of label y
- ``label_counts/<k>`` [C]: 1 for labels of which client k has examples, otherwise 0
- ``label_logits/all`` and ``label_counts/all``: with privacy, F_y and N_y instead of the entries of each client
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings.methods.algorithms import FedDistillSettings
from knot_runner.config.strict import without
from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalTraining, Trained
from knot_runner.engine.objectives import LossRows, Objective, ObjectiveInputs, SampleLoss, cross_entropy
from knot_runner.methods.contract import ClientMessage
from knot_runner.methods.federated import own_models
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.methods.messages import Answers, Exchange
from knot_runner.util.files import Facts

#: Settings of the objective that the cross-entropy does not have.
OF_LABELS = ("weight", "label_temperature")


def regularized(
    config: FedDistillSettings, state: FederatedState, federation: Federation, request: LocalTraining
) -> LocalTraining:
    """Return ``request`` with a loss that also compares the client's logits with the other clients' mean logits.

    If no other client has sent logits, the request is unchanged.
    """
    means = others_means(state, federation, request.client)
    if means is None:
        return request
    labels = federation.train_labels[request.rows]
    logits = means[0][labels]
    known = means[1][labels]
    options = {"weight": config.labels.weight, "label_temperature": config.labels.temperature}
    objective = Objective(label_distillation, request.objective.settings | options)
    inputs = {"label_logits": logits.to(request.start.weights.dtype), "known": known}
    return replace(request, objective=objective, inputs=inputs)


def others_means(state: FederatedState, federation: Federation, client: int) -> tuple[Tensor, Tensor] | None:
    """Return, for each label, the other clients' mean logits, and a flag that tells whether these logits are known.

    The logits of a label are averaged over the other clients that have examples of this label. With privacy, the
    average covers all participants of the previous round, possibly including the client.

    Returns:
        The mean logits, float64 [C, C], and the flags, shape [C]; None if no other client has sent a message.
    """
    if "label_counts/all" in state:
        return state["label_logits/all"].double(), state["label_counts/all"] > 0
    sent = [other for other in federation.numbers if other != client and f"label_logits/{other}" in state]
    if not sent:
        return None
    logits = torch.stack([state[f"label_logits/{other}"].double() for other in sent])
    has = torch.stack([state[f"label_counts/{other}"] for other in sent]) > 0
    return (logits * has[:, :, None]).sum(0) / has.sum(0).clamp_min(1)[:, None], has.any(0)


def label_distillation(settings: Facts, inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Return the objective ``CE(z, y) + weight * CE(z / tau, softmax(F_y / tau))``.

    z are the client's logits, y is the label, and F_y are the other clients' mean logits for label y. For examples
    whose F_y is unknown, the second term is 0.

    Args:
        settings: ``weight``, ``label_temperature`` (tau), and the settings of the cross-entropy CE(z, y).
        inputs: The tensor ``label_logits`` [n, C] holds the F_y of each example. The tensor ``known`` [n] tells for
            each example whether F_y is known.
    """
    rows, hard = cross_entropy(without(settings, *OF_LABELS), inputs)
    weight, tau = itemgetter(*OF_LABELS)(settings)

    def loss(logits: Tensor, batch: LossRows) -> Tensor:
        target = torch.softmax(batch["label_logits"] / tau, 1)
        distance = F.cross_entropy(logits / tau, target, reduction="none")
        return hard(logits, batch) + weight * distance * batch["known"]

    return rows | inputs.tensors, loss


def told(config: FedDistillSettings, state: FederatedState, federation: Federation, client: int) -> ClientMessage:
    """Return the server's message to a client; {} if no other client has sent a message.

    The message holds the mean logits ``labels`` and the flags ``present``, as in :func:`others_means`.
    """
    means = others_means(state, federation, client)
    if means is None:
        return {}
    return {"labels": means[0].to(federation.model.weights.dtype), "present": means[1]}


def ask(
    config: FedDistillSettings, federation: Federation, round: int, client: int, model: ClientModel
) -> list[Inference]:
    """Return the request that computes the trained model's logits for the client's training examples."""
    return [federation.inference(client, model, federation.clients[client].train, "train")]


def answer(config: FedDistillSettings, federation: Federation, client: int, logits: list[Tensor]) -> ClientMessage:
    """Return the client's message.

    - ``labels`` [C, C]: row y holds the mean logits for the client's training examples with label y; zeros if there are
      none
    - ``present`` [C]: entry y is 1 if the client has training examples with label y, otherwise 0
    """
    (outputs,) = logits
    labels = federation.train_labels[federation.clients[client].train]
    classes = outputs.shape[1]
    counts = torch.bincount(labels, minlength=classes)
    total = torch.zeros(classes, classes, dtype=torch.float64).index_add_(0, labels, outputs.double())
    means = total / counts.clamp_min(1)[:, None]
    return {"labels": means.to(outputs.dtype), "present": (counts > 0).to(outputs.dtype)}


def fold_labels(
    config: FedDistillSettings, state: FederatedState, federation: Federation, round: int, answers: Answers,
    distilled: list[Trained],
) -> Folded:  # fmt: skip
    """Store the participants' messages in the state. Return the new state, and an empty log row.

    Without privacy, each message is stored. With privacy, two estimates from the mean of the messages are stored
    instead: F_y and N_y of the module's docstring.
    """
    after = dict(state)
    for sent in answers.each:
        after[f"label_logits/{sent.client}"], after[f"label_counts/{sent.client}"] = sent.parts.values()
    if answers.mean:
        sums, counts = (answers.share * len(federation) * mean for mean in answers.mean.values())
        counts = torch.where(counts > 0.5, counts.clamp_min(1), 0.0)
        means = (sums / counts.clamp_min(1)[:, None]).to(federation.model.weights.dtype)
        after |= {"label_logits/all": means, "label_counts/all": counts}
    return after, {}


#: The server does not train.
EXCHANGE = Exchange(ask, answer, lambda *_: [], fold_labels, answered_by="clients")
PLAN = own_models.plan_with(regularized, own_models.plan)
FEDDISTILL = replace(own_models.LOCAL, plan=PLAN, received=told, exchange=lambda config: EXCHANGE)
