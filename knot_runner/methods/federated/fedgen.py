"""FedGen (Zhu, Hong and Zhou 2021): the server learns a generator of features, and clients train on it, too. No data.

FedAvg, whose server trains a generator by the last layers of the round's clients and how many examples of each label
they have (:mod:`latent_generator`). From the next round on a client minimises, of its example (x, y) with outputs p,

    CE(p, y) + alpha CE(h(G(e', y')), y') + beta KL(h(G(e, y)) || p),

with h its own last layer and y' drawn as often as the last round's clients had each label; the weights decay by round.
State, beyond FedAvg's: ``generator/...``, and ``generator/labels`` [C], the counts that labels are drawn by.

Private training: a client's model and the shares of its labels are clipped as one vector and covered by noise. With C,
z, q and K of :mod:`user_privacy`, p_k the shares of client k's labels, and s = ``label_scale`` C,

    u_k = clip((w_k - w, s p_k)),  (U, V) = sum_k u_k + N(0, z^2 C^2 I),  w + U / (q K),  labels in proportion to V.

The generator learns from the last layer of the new global model, in the place of each client's own: the server sees
nothing else. Ours: no paper has this message.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.engine.objectives import LossRows, Objective, ObjectiveInputs, SampleLoss, cross_entropy
from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import Method
from knot_runner.methods.federated import averaging, latent_generator
from knot_runner.methods.federated.latent_generator import Head
from knot_runner.methods.federated.server import step_towards
from knot_runner.methods.federated.server_distillation import DISTILLATION
from knot_runner.methods.federated.user_privacy import norms_row, private_sum
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.errors import UserError

#: Settings of the objective that the cross-entropy does not have.
OF_GENERATOR = ("alpha", "beta")
LABELS = "generator/labels"


def init(hp: FederatedSettings, federation: Federation) -> FederatedState:
    """The first global model and a fresh generator. Raises :class:`UserError` where the last layer is not linear."""
    model = _generator(hp, federation)
    return averaging.init(hp, federation) | latent_generator.model_tensors(model)


def plan(hp: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Every participant trains from the global model; once there is a trained generator, on its features, too."""
    requests = averaging.plan(hp, state, federation, round)
    if LABELS not in state:
        return requests
    model = _generator(hp, federation)
    latent_generator.load_generator(model, state)
    return [_on_features(hp, state, federation, model.eval(), request) for request in requests]


def fold(
    hp: FederatedSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> tuple[FederatedState, dict[str, float]]:  # fmt: skip
    """The mean of what was trained, and the generator trained by the participants' last layers; in private training by
    the new global model's."""
    if federation.privacy is None:
        after, row = averaging.fold(hp, state, federation, round, requests, trained)
        heads = [_head(federation, result.weights, counts_by_label(federation, result)) for result in trained]
    else:
        after, counts, row = private_fold_labels(hp, state, federation, round, trained)
        heads = [_head(federation, after["weights"], counts)]
    model = _generator(hp, federation)
    latent_generator.load_generator(model, state)
    made, loss = latent_generator.train_generator(hp.generator, model, state, heads, federation.seed, round)
    counts = torch.stack([head.counts for head in heads]).sum(0)
    return {**after, **made, LABELS: counts}, {**row, "generator_loss": loss}


def latent_regularised(settings: dict[str, Any], inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """The loss of a client (see above), its cross-entropy as ``cross_entropy`` has it, chilled or not.

    ``inputs.tensors``: ``drawn`` [n], a label for each example, ``drawn_features`` [n, H] generated for it, and
    ``own_features`` [n, H] generated for the example's own label; ``inputs.head``: the last layer as it stands.
    """
    rows, hard = cross_entropy({key: value for key, value in settings.items() if key not in OF_GENERATOR}, inputs)
    alpha, beta, head = settings["alpha"], settings["beta"], inputs.head

    def loss(logits: Tensor, own: LossRows) -> Tensor:
        on_features = F.cross_entropy(head(own["drawn_features"]), own["drawn"], reduction="none")
        target = torch.softmax(head(own["own_features"]).detach(), 1)
        divergence = (torch.xlogy(target, target) - target * torch.log_softmax(logits, 1)).sum(1)
        return hard(logits, own) + alpha * on_features + beta * divergence

    names = ("drawn", "drawn_features", "own_features")
    return rows | {name: inputs.tensors[name] for name in names}, loss


def _on_features(
    hp: FederatedSettings, state: FederatedState, federation: Federation, model: nn.Module, request: LocalTraining
) -> LocalTraining:
    """``request`` with the features that its client trains on in the round, one of each kind for every example."""
    spec, dtype, count = hp.generator, request.start.weights.dtype, len(request.rows)
    labels, classes = federation.train_labels[request.rows], len(state[LABELS])
    draws = generator(federation.seed, "features", request.round, request.client)
    drawn = latent_generator.drawn_labels(state[LABELS], count, draws)
    features = []
    with torch.no_grad():
        for wanted in (drawn, labels):
            noise = latent_generator.drawn_noise(spec, count, dtype, draws)
            features.append(latent_generator.generated(model, noise, wanted, classes))
    weights = {name: getattr(spec, name) * spec.decay**request.round for name in OF_GENERATOR}
    objective = Objective(latent_regularised, {**request.objective.settings, **weights}, reads_head=True)
    inputs = {"drawn": drawn, "drawn_features": features[0], "own_features": features[1]}
    return dataclasses.replace(request, objective=objective, inputs=inputs)


def _generator(hp: FederatedSettings, federation: Federation) -> nn.Module:
    weight, _ = _head_fields(federation)
    classes, features = weight.shape
    dtype = federation.model.weights.dtype
    return latent_generator.new_generator(hp.generator, classes, features, federation.seed, dtype)


def _head_fields(federation: Federation) -> tuple[flat.Field, flat.Field]:
    """Where weight and bias of the last layer lie."""
    layout = federation.layout
    found = {
        field.name.removeprefix(layout.head): field for field in layout.parameters if field.name.startswith(layout.head)
    }
    if set(found) != {"weight", "bias"} or len(found["weight"].shape) != 2:
        raise UserError(
            f"model.head: {layout.head.removesuffix('.')} has {', '.join(found)}; of fedgen it is one linear layer "
            "with weight and bias"
        )
    return found["weight"], found["bias"]


def _head(federation: Federation, weights: Tensor, counts: Tensor) -> Head:
    """Returns the last layer of a model [P], which is part of what a participant sends, with its label ``counts`` [C],
    sent in addition."""
    weight, bias = flat.views(weights, _head_fields(federation)).values()
    return Head(weight, bias, counts)


def counts_by_label(federation: Federation, result: Trained) -> Tensor:
    """How many training examples of each label a participant has, [C]."""
    labels = federation.train_labels[federation.clients[result.client].train]
    return torch.bincount(labels, minlength=len(federation.labels.names))


FEDGEN = Method(init, plan, fold, averaging.deployed, exchange=DISTILLATION)


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
    after = step_towards(hp, state, mean) | averaging.own_statistics(hp, trained)
    return after, (MILLION * shares / shares.sum()).round().long(), norms_row(privacy, norms)
