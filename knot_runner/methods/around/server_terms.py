"""Server distillation with the loss terms in ``method.server_distillation.terms``.

The terms are those of ``method=distill``. They replace the losses of KNOT. A term compares outputs, hidden layers, or
relations among the examples of a batch.

The clients act as one teacher: its outputs are weighted means of the clients' outputs. The outputs of hidden layers can
be averaged as well, because all clients start a round from the same model. The server computes these outputs with the
models that the clients sent. With FedMD, clients send only logits, so terms cannot read hidden layers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.server_distillation import ServerDistillation
from knot_runner.config.settings.methods.terms import Terms, check_batch
from knot_runner.engine.examples import InputBatch, batch_count
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ClientModel, LocalProgram, LocalResult
from knot_runner.engine.seeds import generator, seeded
from knot_runner.engine.tensor_file import Tensors
from knot_runner.engine.training import LocalWork
from knot_runner.methods.around.server_distillation import ENSEMBLE
from knot_runner.methods.contract import METHODS, nothing
from knot_runner.methods.distill.learner import (
    SHOWN,
    WeightedTerms,
    frozen_teachers,
    read_terms,
    wanted_taps,
)
from knot_runner.methods.distill.term import TERMS, TermBatch
from knot_runner.methods.party import LabelPoints
from knot_runner.models.network import Network
from knot_runner.models.taps import NetworkOutputs, read_taps
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

_KEY = "method.server_distillation.terms"


def check_server_terms(algorithm: str, spec: ServerDistillation, networks: Sequence[Network], examples: int) -> None:
    """Check that the server can distill with each of the loss terms.

    A term must not read labels, because the transfer set has none. A term may read hidden layers only if the clients
    send models.

    Args:
        algorithm: The name of the federated method.
        spec: The settings that contain the terms.
        networks: The clients' networks.
        examples: The number of examples in the transfer set.

    Raises:
        UserError: A term breaks one of these rules, or does not fit the networks or the number of examples.
    """
    for network in networks:
        for terms in read_terms(spec.terms, network, [network], _KEY):
            where = f"{_KEY}.{terms.name}"
            if TERMS[terms.name].reads_labels:
                raise UserError("the term needs labels, but the transfer set has none. Use kd", where)
            if terms.pairs and METHODS[algorithm].message is nothing:
                raise UserError(
                    f"the term needs inner layers, but the clients of {algorithm} send only logits. Use kd or sinkhorn",
                    where,
                )
            check_batch([terms.name], _KEY, min(spec.batch_size, examples), "the transfer set's batch")


@dataclass(frozen=True)
class TermSettings:
    """Settings of :func:`train_by_terms`.

    ``models``: the number of clients whose hidden layers the terms read; 0 if the terms read only logits.
    """

    terms: Terms
    network: Network
    points: LabelPoints
    models: int


def term_program(
    spec: ServerDistillation, network: Network, points: LabelPoints, sent: list[ClientModel], weights: Tensor | None
) -> LocalProgram:
    """Return the local program that trains the student with the loss terms ``spec.terms``.

    Args:
        spec: The settings of server distillation.
        network: The student's network.
        points: The coordinates [C][d] of the classes, for transport costs.
        sent: The models of the K clients.
        weights: The weights [n, K] for averaging the K clients' hidden features, for each of the n examples.
            Used only if a term reads hidden layers.
    """
    tensors: Tensors = {}
    models = 0
    if any(wanted_taps(read_terms(spec.terms, network, [network], _KEY), 1)[1]):
        models = len(sent)
        for number, model in enumerate(sent):
            tensors |= {f"{number}/weights": model.weights, f"{number}/buffers": model.buffers}
        if weights is not None:
            tensors["mean"] = weights
    settings = TermSettings(spec.terms, network, points, models)
    return LocalProgram(train_by_terms, vars(settings), tensors)


def train_by_terms(settings: Facts, work: LocalWork) -> LocalResult:
    """Local program: train the student on the weighted sum of the loss terms.

    The parameters and buffers of the terms are newly initialized in every round. Random draws are seeded by the run's
    seed, the round and the student.
    """
    spec = TermSettings(**settings)
    request = work.request
    device = work.examples.labels.device
    names = (request.round, request.client)
    specs = read_terms(spec.terms, spec.network, [spec.network], _KEY)
    student_taps, (other,) = wanted_taps(specs, 1)
    student = read_taps(work.model, spec.network, student_taps)
    teacher = _mean_teacher(spec, work, other)
    work.model.eval()
    with torch.no_grad(), seeded(request.seed, "adapters", *names):
        positions, inputs = next(work.examples.in_turn(SHOWN))
        points = torch.tensor(spec.points, dtype=torch.float64)
        shown = student(**inputs), teacher(positions, inputs)
        losses = WeightedTerms(specs, *shown, len(work.examples), points).to(device)
    module = nn.ModuleDict({"student": work.model, "terms": losses})
    draws = generator(request.seed, "terms", *names)
    finished = itertools.count()
    per_epoch = batch_count(len(work.examples), request.recipe.batch_size, request.recipe.drop_last)
    losses.train()

    def losses_of(batch: InputBatch) -> Tensor:
        positions, inputs = batch
        unlabeled = torch.full_like(positions, UNLABELED, device=device)
        rows = TermBatch(unlabeled, positions.to(device), draws, 1 + next(finished) // per_epoch)
        return losses(student(**inputs), teacher(positions, inputs), rows)

    return LocalResult(*work.train(module, losses_of))


def _mean_teacher(
    spec: TermSettings, work: LocalWork, taps: list[str]
) -> Callable[[Tensor, Tensors], list[NetworkOutputs]]:
    """Return a function of positions [B] and a batch's inputs that returns the outputs of the one teacher.

    These outputs are weighted means over the clients. ``taps``: names of the hidden layers that the terms read.
    """
    logits = work.request.inputs[ENSEMBLE]
    readers = []
    for number in range(spec.models):
        model = copy.deepcopy(work.model).requires_grad_(False).eval()
        flat.load_flat(model, work.tensors[f"{number}/weights"], work.tensors[f"{number}/buffers"])
        readers.append(read_taps(model, spec.network, taps))
    clients = frozen_teachers(readers, work.examples, cached=True)

    def outputs_of(positions: Tensor, inputs: Tensors) -> list[NetworkOutputs]:
        """Return the outputs of the one teacher for a batch."""
        taken = logits[positions.to(logits.device)].to(next(iter(inputs.values())).device)
        if not readers:
            return [NetworkOutputs(taken)]
        weights = work.tensors["mean"]
        weights = weights[positions.to(weights.device)]
        shares = (weights / weights.sum(1, keepdim=True)).unbind(1)
        means: Tensors = {}  # sum_k W_k t_k / sum_k W_k of each tap t_k [B, ...]
        for share, outputs in zip(shares, clients(positions, inputs), strict=True):
            for name, tap in outputs.taps.items():
                wide = share.to(tap).view(-1, *[1] * (tap.dim() - 1))
                means[name] = means.get(name, tap.new_zeros(())) + wide * tap
        return [NetworkOutputs(taken, means)]

    return outputs_of
