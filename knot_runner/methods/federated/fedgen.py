"""FedGen (Zhu, Hong and Zhou 2021): the server trains a feature generator, and clients train on generated features.

The method is FedAvg with an additional generator G(e, y). It maps noise e and a label y to features, the inputs of the
last layer.

The server trains G without any data. It uses the last layer W_k z + b_k of each client k of the round. a_k(y) is the
fraction of all examples with label y that belong to client k. Labels y are drawn with the label frequencies of the
round's clients. G minimizes the sum of two terms:

    sum_k a_k(y) CE(W_k G(e, y) + b_k, y)
    diversity exp(-mean_ij |e_i - e_j|^2 |G_i - G_j|)

The second term has a mean over all pairs (i, j) of generated features. As in the public code, the squared and the
absolute difference are means over coordinates.

From the next round on, a client minimizes for each example (x, y) with outputs p

    CE(p, y) + alpha CE(h(G(e', y')), y') + beta KL(h(G(e, y)) || p)

h is the client's last layer, e and e' are noise, and y' is a random label. The label y' is drawn with the label
frequencies of the previous round's clients. The weights alpha and beta decay from round to round.

Differences from the paper: with privacy, the server may read only means. It then trains the generator with the last
layer of the new global model and the clients' mean label frequencies. This private variant is our own design.

State, in addition to FedAvg's:

- ``generator/labels`` [C]: label counts from which y' is drawn
- other entries ``generator/...``: the generator and its optimizer
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.algorithms import FedGenSettings, LatentGenerator
from knot_runner.config.strict import without
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.objectives import LossRows, Objective, ObjectiveInputs, SampleLoss, cross_entropy
from knot_runner.engine.seeds import generator, seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import take_step
from knot_runner.methods.contract import ClientMessage, ClientWork, Method, Sent, entries_below
from knot_runner.methods.federated import averaging
from knot_runner.methods.federation import FederatedState, Federation, Folded
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

#: Settings of the objective that the cross-entropy does not have.
OF_GENERATOR = ("alpha", "beta")
LABELS = "generator/labels"
#: Prefixes of state entries: the generator's weights and running statistics, and the state of Adam.
MODEL = "generator/model."
ADAM = "generator/adam."
#: Mean label frequencies are multiplied by this number, an assumed total number of examples, to get label counts.
MILLION = 1_000_000
#: Names of the tensors that Adam stores for each parameter.
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def init(config: FedGenSettings, federation: Federation) -> FederatedState:
    """Return the state with the initial global model and a new generator.

    Raises:
        UserError: The last layer is not linear.
    """
    return averaging.init(config, federation) | model_tensors(_generator(config, federation, {}))


def plan(config: FedGenSettings, state: FederatedState, federation: Federation, round: int) -> list[LocalTraining]:
    """Return one training request per participant. Training starts from the global model.

    After the first round, participants also train on generated features.
    """
    requests = averaging.plan(config, state, federation, round)
    if LABELS not in state:
        return requests
    model = _generator(config, federation, state).eval()
    return [_on_features(config, state, federation, model, request) for request in requests]


def message(config: FedGenSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return FedAvg's message and ``labels`` [C]: the frequency of each label among the client's examples."""
    labels = federation.train_labels[federation.clients[work.client].train]
    counts = torch.bincount(labels, minlength=len(federation.labels.names))
    parts = averaging.message(config, state, federation, work)
    return parts | {"labels": (counts.double() / len(labels)).to(state["weights"].dtype)}


def fold(
    config: FedGenSettings, state: FederatedState, federation: Federation, round: int, mean: ClientMessage, share: float
) -> Folded:
    """Take FedAvg's server step, and train the generator with the last layer of the new global model.

    With privacy, this function replaces :func:`fold_each`. The generator is trained on random labels. A label's
    probability is proportional to its mean frequency in the participants' messages. If noise makes all mean
    frequencies zero or negative, labels are drawn uniformly.
    """
    after, _ = averaging.fold(config, state, federation, round, mean, share)
    shares = mean["labels"].double().clamp_min(0)
    if not shares.any():
        shares = torch.ones_like(shares)
    counts = (MILLION * shares / shares.sum()).round().long()
    return train_generator(config, state, after, federation, round, [_head(federation, after["weights"], counts)])


def fold_each(
    config: FedGenSettings, state: FederatedState, federation: Federation, round: int, sent: list[Sent]
) -> Folded:
    """Take FedAvg's server step, and train the generator with the participants' last layers."""
    mean = averaging.mean_of(sent, config.aggregation)
    after, _ = averaging.fold(config, state, federation, round, mean, len(sent) / len(federation))
    heads = []
    for client in sent:
        counts = (client.parts["labels"].double() * client.examples).round().long()
        heads.append(_head(federation, state["weights"] + client.parts["update"], counts))
    return train_generator(config, state, after, federation, round, heads)


def train_generator(
    config: FedGenSettings, state: FederatedState, after: FederatedState, federation: Federation, round: int,
    heads: list[Head],
) -> Folded:  # fmt: skip
    """Train the generator in ``state`` with the last layers ``heads``. ``after``: the state after FedAvg's server step.

    Returns:
        A copy of ``after`` with the trained generator, and a log row with the generator's mean loss.
    """
    spec = config.generator
    model = _generator(config, federation, state)
    optimizer = torch.optim.Adam(model.parameters(), lr=spec.lr, weight_decay=spec.weight_decay)
    for index, parameter in enumerate(model.parameters()):
        if f"{ADAM}{index}.step" in state:
            optimizer.state[parameter] = {name: state[f"{ADAM}{index}.{name}"].clone() for name in MOMENTS}
    counts = torch.stack([head.counts for head in heads]).sum(0)
    total = 0.0
    for step in range(spec.steps):
        draws = generator(federation.seed, "generator", round, step)
        labels = drawn_labels(counts, spec.batch_size, draws)
        noise, features = noisy_features(spec, model, labels, len(counts), draws)
        loss = heads_loss(features, noise, labels, heads, spec.diversity)
        take_step(optimizer, loss)
        total += float(loss.detach())
    after = after | model_tensors(model)
    for index, parameter in enumerate(model.parameters()):
        after |= {f"{ADAM}{index}.{name}": tensor for name, tensor in optimizer.state[parameter].items()}
    return {**after, LABELS: counts}, {"generator_loss": total / spec.steps}


def with_generator(config: FedGenSettings, state: FederatedState, federation: Federation, client: int) -> ClientMessage:
    """Return the server's message to a client: the global model.

    After the first round, the message also holds the generator and the previous round's label counts.
    """
    parts = averaging.received(config, state, federation, client)
    if LABELS not in state:
        return parts
    return parts | {name: tensor for name, tensor in state.items() if name == LABELS or name.startswith(MODEL)}


def latent_regularized(settings: Facts, inputs: ObjectiveInputs) -> tuple[LossRows, SampleLoss]:
    """Return a client's objective. The objective is the sum of three terms; see the module's docstring.

    Args:
        settings: ``alpha``, ``beta``, and the settings of the first term, CE(p, y).
        inputs: ``inputs.head`` is the current last layer. The entries of ``inputs.tensors`` are:

            - ``drawn`` [n]: a random label for each example
            - ``drawn_features`` [n, H]: features generated for the random label
            - ``own_features`` [n, H]: features generated for the example's own label
    """
    rows, hard = cross_entropy(without(settings, *OF_GENERATOR), inputs)
    alpha, beta = itemgetter(*OF_GENERATOR)(settings)
    head = inputs.head

    def loss(logits: Tensor, batch: LossRows) -> Tensor:
        on_features = F.cross_entropy(head(batch["drawn_features"]), batch["drawn"], reduction="none")
        target = torch.softmax(head(batch["own_features"]).detach(), 1)
        divergence = (torch.xlogy(target, target) - target * torch.log_softmax(logits, 1)).sum(1)
        return hard(logits, batch) + alpha * on_features + beta * divergence

    return rows | inputs.tensors, loss


def _on_features(
    config: FedGenSettings, state: FederatedState, federation: Federation, model: nn.Module, request: LocalTraining
) -> LocalTraining:
    """Return ``request`` with features generated for each example's own label, and for a drawn label."""
    spec = config.generator
    counts = state[LABELS]
    draws = generator(federation.seed, "features", request.round, request.client)
    drawn = drawn_labels(counts, len(request.rows), draws)
    with torch.no_grad():
        _, drawn_features = noisy_features(spec, model, drawn, len(counts), draws)
        _, own_features = noisy_features(spec, model, federation.train_labels[request.rows], len(counts), draws)
    weights = {name: getattr(spec, name) * spec.decay**request.round for name in OF_GENERATOR}
    objective = Objective(latent_regularized, request.objective.settings | weights, reads_head=True)
    inputs = {"drawn": drawn, "drawn_features": drawn_features, "own_features": own_features}
    return replace(request, objective=objective, inputs=inputs)


def _generator(config: FedGenSettings, federation: Federation, state: FederatedState) -> nn.Module:
    """Return the generator in ``state``; a new generator if ``state`` has none."""
    weight, _ = _head_fields(federation)
    classes, features = weight.shape
    model = new_generator(config.generator, classes, features, federation.seed, federation.model.weights.dtype)
    if state:
        load_generator(model, state)
    return model


def _head_fields(federation: Federation) -> tuple[flat.Field, flat.Field]:
    """Return the positions of the weight and bias of the last layer."""
    head = federation.layout.head
    fields = federation.layout.parameters
    head_fields = {field.name.removeprefix(head): field for field in fields if field.name.startswith(head)}
    if set(head_fields) != {"weight", "bias"} or len(head_fields["weight"].shape) != 2:
        raise UserError(
            f"fedgen needs a head of one linear layer (tensors: weight, bias), got tensors: {', '.join(head_fields)}",
            "model.head",
        )
    return head_fields["weight"], head_fields["bias"]


def _head(federation: Federation, weights: Tensor, counts: Tensor) -> Head:
    """Return the last layer of a participant's model ``weights`` [P], with the ``counts`` of examples per label."""
    weight, bias = flat.views(weights, _head_fields(federation)).values()
    return Head(weight, bias, counts)


FEDGEN = Method(init, plan, message, fold, averaging.deployed, fold_each=fold_each, received=with_generator)


@dataclass(frozen=True)
class Head:
    """A client's last layer, with ``weight`` [C, H] and ``bias`` [C].

    ``counts`` [C]: the client's number of training examples with each label.
    """

    weight: Tensor
    bias: Tensor
    counts: Tensor


def new_generator(spec: LatentGenerator, classes: int, features: int, seed: int, dtype: torch.dtype) -> nn.Module:
    """Return a new generator of features [B, H].

    The generator's input [B, E + C] is noise, followed by the one-hot code of a label.
    """
    with seeded(seed, "generator"):
        first = nn.Linear(spec.noise + classes, spec.hidden)
        last = nn.Linear(spec.hidden, features)
    return nn.Sequential(first, nn.BatchNorm1d(spec.hidden), nn.ReLU(), last).to(dtype)


def generated(model: nn.Module, noise: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the generator's features [B, H] for ``noise`` [B, E] and ``labels`` [B]."""
    features: Tensor = model(torch.cat([noise, F.one_hot(labels, classes).to(noise.dtype)], 1))
    return features


def drawn_labels(counts: Tensor, number: int, draws: torch.Generator) -> Tensor:
    """Return random labels, drawn with probabilities proportional to ``counts`` [C].

    The argument ``number`` is the number of labels to draw.
    """
    return torch.multinomial(counts.double(), number, replacement=True, generator=draws)


def noisy_features(
    spec: LatentGenerator, model: nn.Module, labels: Tensor, classes: int, draws: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return uniform noise [B, E] in [0, 1), and the features [B, H] generated from this noise and ``labels`` [B]."""
    noise = torch.rand(len(labels), spec.noise, generator=draws, dtype=torch.float64)
    noise = noise.to(next(model.parameters()).dtype)
    return noise, generated(model, noise, labels, classes)


def heads_loss(features: Tensor, noise: Tensor, labels: Tensor, heads: list[Head], diversity: float) -> Tensor:
    """Return the generator's scalar loss, computed with the clients' heads; see the module's docstring.

    Args:
        features: The generated features [B, H].
        noise: The noise [B, E] from which the features were generated.
        labels: The labels [B] for which the features were generated.
        heads: The clients' last layers.
        diversity: The weight of the term that rewards diverse features.
    """
    counts = torch.stack([head.counts for head in heads]).to(features.dtype)  # [K, C]
    shares = (counts / counts.sum(0).clamp_min(1))[:, labels]  # [K, B]
    total = features.new_zeros(())
    for head, share in zip(heads, shares, strict=True):
        logits = features @ head.weight.T + head.bias
        total = total + (share * F.cross_entropy(logits, labels, reduction="none")).mean()
    feature_distances = torch.cdist(features, features, p=1) / features.shape[1]
    noise_distances = (noise[:, None] - noise).square().mean(2)
    return total + diversity * torch.exp(-(noise_distances * feature_distances).mean())


def model_tensors(model: nn.Module) -> Tensors:
    """Return the generator's weights and running statistics as state entries."""
    return {f"{MODEL}{name}": tensor.clone() for name, tensor in model.state_dict().items()}


def load_generator(model: nn.Module, state: Tensors) -> None:
    """Load the generator's weights and running statistics from ``state`` into ``model``, in place."""
    model.load_state_dict(entries_below(state, MODEL))
