"""Personalization after the last round of a federated method, and evaluation of all clients' models at every point.

A point is a step of the personalization together with a mixing weight. At each point, one model of every client is
evaluated on the test examples of all clients.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.methods.around import training_flops
from knot_runner.methods.federation import FederatedState
from knot_runner.methods.messages import check_outcomes
from knot_runner.methods.personalization import PERSONALIZATIONS
from knot_runner.methods.personalization.contract import (
    ClientModels,
    PersonalFederation,
    Personalization,
    personal_recipe,
    personal_training,
)
from knot_runner.methods.personalization.curve import point_facts, trade_offs
from knot_runner.methods.personalization.matrix import TestRows, count
from knot_runner.metrics import Measures
from knot_runner.pipelines.clients import FederatedContext
from knot_runner.pipelines.context import RunRecord, total_seconds
from knot_runner.pipelines.personalization.client_matrix import ClientMatrix, deployed_matrix, logits_on
from knot_runner.pipelines.rounds import Advanced, run_rounds, scalars
from knot_runner.pipelines.scores import TestPredictions, own_predictions
from knot_runner.records import CLIENTS_FILE
from knot_runner.util.errors import DivergedError
from knot_runner.util.files import Facts, LogRow, removal, write_atomic

#: Folder below the run's folder with the commits of personalization.
PERSONAL_COMMITS = "personalization"
#: Models that may be deployed are kept in the state if they have at most this many bytes.
MODELS_BYTES = 1 << 31


@dataclass(frozen=True)
class PersonalModels:
    """The personalized models that clients deploy, and their evaluation.

    Attributes:
        models: A dict from each client to its model; empty if the models would take too much memory.
        predictions: The predictions of each client's model on the client's own test examples.
        measures: The result of :meth:`ClientMatrix.measures` for the models.
        flops: The FLOPs of the whole personalization; None if unknown.
    """

    models: ClientModels
    predictions: TestPredictions
    measures: Measures
    flops: int | None


def personalize(run: FederatedContext, state: FederatedState, record: RunRecord) -> PersonalModels:
    """Personalize the clients' models after the last round; return the models that clients deploy.

    ``state``: the state after the last round.
    """
    context = run.context
    work = _Work(run, state)
    commits = context.commits(run.setup.task.digest, context.folder / PERSONAL_COMMITS)
    state, rows = run_rounds(work.advance, commits, work.begin)
    flops: int | None = None
    if run.setup.example_flops is not None:
        flops = sum(row["client_flops"] for row in rows)
    personal, facts = work.result(state, flops)
    for point in facts["points"]:
        context.log({"personalization": {"epoch": point["epochs"], **scalars(point)}})
    with removal(), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(context.folder / PERSONAL_COMMITS)
    record.add(personalization=facts)
    record.seconds.update(personalization=total_seconds(rows))
    return personal


class _Work:
    """The personalization of one run.

    In addition to the method's state, the state holds the record of every point: ``record/correct`` [points, K, K],
    ``record/loss`` [points, K, K], ``record/valid`` [points, K], and ``record/logits`` [points, M, C]. The logits are
    those of each client's model on its own test examples, one client after another. ``model/<point>/<client>/`` are
    models that may be deployed.
    """

    def __init__(self, run: FederatedContext, state: FederatedState) -> None:
        self.run = run
        self.spec = run.config.personalization
        self.kind: Personalization = PERSONALIZATIONS[self.spec.kind]
        start = partial(run.deployed, state)
        self.federation = PersonalFederation.after(run.federation, run.config, start, run.setup.partition.groups)
        self.points = self.kind.points(self.spec)
        self.tests = TestRows.of(self.federation.rows("test"))
        self.labels = run.setup.test.labels[self.tests.rows]
        self.start = deployed_matrix(run, state)
        self.kept = self._kept_points()

    def _kept_points(self) -> range:
        """Return the points whose models may be deployed; an empty range, and a note, if these need too much memory."""
        points = range(len(self.points))[0 if self.spec.select == "valid" else -1 :]
        size = len(points) * len(self.federation.clients) * self.federation.model.weights.nbytes
        if size <= MODELS_BYTES:
            return points
        hint = ". To save the last ones, use method.personalization.select=last" if len(points) > 1 else ""
        self.run.context.note(f"The personalized models are evaluated but not saved: {size / 2**30:.1f} GiB{hint}.")
        return range(0)

    def begin(self) -> FederatedState:
        """Return the state before the first round."""
        points = len(self.points)
        clients = len(self.federation.clients)
        return self.kind.init(self.spec, self.federation) | {
            "record/correct": torch.zeros(points, clients, clients, dtype=torch.int32),
            "record/loss": torch.zeros(points, clients, clients, dtype=torch.float64),
            "record/valid": torch.zeros(points, clients, dtype=torch.int32),
            "record/logits": torch.zeros(points, len(self.tests.places), self.run.classes),
        }

    def advance(self, state: FederatedState, round: int, rows: list[LogRow]) -> Advanced:
        """Run one round and evaluate the models: see :data:`~knot_runner.pipelines.rounds.Advance`."""
        kind = self.kind
        spec = self.spec
        federation = self.federation
        flops = self.run.setup.example_flops
        requests = kind.plan(spec, state, federation, round)
        if not requests:
            return None
        trained = self.run.engine.train(requests)
        check_outcomes(round, trained, federation, "a smaller method.personalization.lr")
        state, row = kind.fold(spec, state, federation, round, requests, trained)
        for number, models in kind.measured(spec, federation, state, round):
            self._record(state, number, models)
        self.run.context.progress("personalization", round + 1, kind.rounds(spec, federation), "")
        row["client_flops"] = None if flops is None else sum(training_flops(request, flops) for request in requests)
        return state, row

    def _record(self, state: FederatedState, number: int, models: ClientModels) -> None:
        """Evaluate the ``models`` of point ``number``; record the number of correct predictions and the loss.

        Raises:
            DivergedError: A logit is not finite.
        """
        federation = self.federation
        step = self.points[number].step
        if self.points[number].mixed and any(federation.layout_of(client).buffer_size for client in models):
            models = self._estimated(number, models)
        if number in self.kept:
            for client, model in models.items():
                state[f"model/{number}/{client}/weights"] = model.weights
                state[f"model/{number}/{client}/buffers"] = model.buffers
        for client, logits in zip(models, logits_on(self.run, self.tests, models.items()), strict=True):
            if not logits.isfinite().all():
                name = federation.clients[client].name
                what = f"diverged after the rounds at {name}, step {step}: the predictions of its model are not finite"
                raise DivergedError(what, step=step, client=name)
            correct, loss = count(self.tests, logits, self.labels, client)
            state["record/correct"][number, client] = correct
            state["record/loss"][number, client] = loss
            state["record/logits"][number, self.tests.owners == client] = logits[self.tests.own(client)].float()
        valid = federation.rows("valid")
        held = [client for client in models if len(valid[client])]
        requests = [federation.inference(client, models[client], valid[client], "train") for client in held]
        for client, logits in zip(held, self.run.engine.logits(requests), strict=True):
            labels = self.run.setup.data.labels[valid[client]]
            state["record/valid"][number, client] = int((logits.argmax(1) == labels).sum())

    def _estimated(self, number: int, models: ClientModels) -> ClientModels:
        """Return the ``models`` of point ``number`` with new running statistics.

        The statistics are estimated on the clients' training examples, in one epoch with learning rate 0.
        """
        step = self.points[number].step
        requests = []
        for client, model in models.items():
            recipe = personal_recipe(self.spec, self.federation, client, epochs=1)
            still = replace(recipe, lr=0.0, optimizer="sgd")
            requests.append(personal_training(self.federation, client, step, model, still))
        trained = self.run.engine.train(requests)
        return {result.client: ClientModel(models[result.client].weights, result.buffers) for result in trained}

    def result(self, state: FederatedState, flops: int | None) -> tuple[PersonalModels, Facts]:
        """Write the results of all points into the run's folder; return the deployed models and a summary.

        ``flops``: the FLOPs of training the models; None if unknown.
        """
        federation = self.federation
        before = self.start
        correct, loss, valid = (state[f"record/{name}"] for name in ("correct", "loss", "valid"))
        sizes = list(map(len, federation.rows("train")))
        points = []
        measures = []
        for number, point in enumerate(self.points):
            matrix = ClientMatrix(before.examples, correct[number], loss[number], before.correct.diagonal())
            measures.append(matrix.measures(federation))
            recipe = personal_recipe(self.spec, federation, 0, point.epochs)
            steps = sum(local.steps(recipe, size) for size in sizes) / len(sizes)
            points.append(point_facts(federation, point, steps, measures[-1], valid[number]))
        scores = [point["valid_accuracy"] or 0.0 for point in points]
        chosen = scores.index(max(scores)) if self.spec.select == "valid" else len(points) - 1
        start = before.measures(federation)
        arrays = {"examples": before.examples, "start": before.correct, "correct": correct, "loss": loss}
        more: Facts = {}
        if self.kind.finish is not None:
            arrays_of_kind, more = self.kind.finish(self.spec, federation, state, self._losses)
            arrays |= arrays_of_kind
        write_atomic(self.run.context.folder / CLIENTS_FILE, tensor_parts(arrays | {"valid": valid}))
        curve = trade_offs(points, start, 1 / self.run.classes)
        facts = {"kind": self.spec.kind, "start": start, "points": points, "chosen": chosen, **curve, **more}
        models = {}
        if chosen in self.kept:
            for client in federation.everyone:
                kept = f"model/{chosen}/{client}"
                models[client] = ClientModel(state[f"{kept}/weights"], state[f"{kept}/buffers"])
        predictions = self._predictions(state["record/logits"][chosen])
        return PersonalModels(models, predictions, measures[chosen], flops), facts

    def _losses(self, client: int, models: Iterable[ClientModel]) -> Tensor:
        """Return each model's mean loss on every client's test examples [models, K].

        The loss is NaN for a client without counted test examples.
        """
        shown = logits_on(self.run, self.tests, ((client, model) for model in models))
        losses = [count(self.tests, logits, self.labels, client)[1] for logits in shown]
        return torch.stack(losses) / self.start.examples[client].double()

    def _predictions(self, logits: Tensor) -> TestPredictions:
        """Return the predictions of each client's model on the client's own test examples, from ``logits`` [M, C]."""
        federation = self.federation
        sizes = list(map(len, self.federation.rows("test")))
        parts = logits.split(sizes)
        labels = self.labels[self.tests.places].split(sizes)
        clients = [*federation.numbers, *federation.unseen]
        return own_predictions([parts[k] for k in clients], [labels[k] for k in clients], len(federation))
