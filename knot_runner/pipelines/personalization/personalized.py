"""Personalization after the rounds of a federated method: clients' own models, evaluated on all clients' test examples.

All variants share one training of the rounds (an artifact, as for clusters). All models of a point are evaluated
together, and only counts stay in memory. Models that may be deployed are stored in files.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import ClientModel, Engine
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.methods.around import training_flops
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federation import FederatedState
from knot_runner.methods.messages import check_outcomes
from knot_runner.methods.personalization import PERSONALIZATIONS
from knot_runner.methods.personalization.contract import (
    PersonalFederation,
    Personalization,
    personal_recipe,
    personal_training,
)
from knot_runner.methods.personalization.curve import point_facts, trade_offs
from knot_runner.pipelines.clients import Setup
from knot_runner.pipelines.context import RunContext, total_seconds
from knot_runner.pipelines.personalization.client_matrix import (
    ClientMatrix,
    TestRows,
    count,
    deployed_matrix,
    logits_of,
)
from knot_runner.pipelines.rounds import Advanced, TrainingResult, run_rounds, scalars
from knot_runner.pipelines.scores import TestPredictions
from knot_runner.records import CLIENTS_FILE
from knot_runner.util.errors import DivergedError
from knot_runner.util.files import Facts, LogRow, removal, write_atomic

#: Below the run's folder: commits of what follows the rounds.
PERSONAL_COMMITS = "personalization"
#: Below the run's folder: models that may be deployed, until it is known which ones are; of more bytes none are kept.
MODELS_FOLDER = "personal_models"
MODELS_BYTES = 1 << 31


@dataclass(frozen=True)
class PersonalModels:
    """The ``models`` that clients deploy, by client (empty if their files would be too large).

    Attributes:
        predictions: The models' predictions on their clients' test examples.
        measures: The metrics computed from the K x K record.
        flops: The FLOPs of training the models, None if unknown.
    """

    models: dict[int, ClientModel]
    predictions: TestPredictions
    measures: dict[str, float]
    flops: int | None = None


def personalize(context: RunContext, setup: Setup, engine: Engine, before: TrainingResult) -> TrainingResult:
    """Run each client's personalization after the rounds; return the result with the deployed models."""
    work = _Work(context, setup, engine, before.method, before.state)
    folder, data = context.folder / PERSONAL_COMMITS, setup.task.digest
    state, rows = run_rounds(work.advance, context.commits(data, folder), work.begin)
    personal, facts = work.result(state)
    for point in facts["points"]:
        context.log({"personalization": {"epoch": point["epochs"], **scalars(point)}})
    for folder in (PERSONAL_COMMITS, MODELS_FOLDER):
        with removal(), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(context.folder / folder)
    flops = [row["client_flops"] for row in rows]
    if None not in flops:
        personal = replace(personal, flops=sum(flops))
    seconds = before.seconds | {"personalization": total_seconds(rows)}
    facts = before.facts | {"personalization": facts}
    return replace(before, facts=facts, seconds=seconds, personal=personal)


class _Work:
    """One run's personalization.

    In addition to the method's state, the state holds the record of every point: ``record/correct`` [points, K, K],
    ``record/loss`` [points, K, K], ``record/valid`` [points, K], and ``record/logits`` [points, M, C]. The logits are
    those of each client's model on its own test examples, one client after another.
    """

    def __init__(
        self, context: RunContext, setup: Setup, engine: Engine, method: RoundMethod, state: FederatedState
    ) -> None:
        self.context, self.setup, self.engine = context, setup, engine
        self.spec = context.method.personalization
        self.kind: Personalization = PERSONALIZATIONS[self.spec.kind]
        start = partial(method.deployed, context.method, state, setup.federation)
        self.federation = PersonalFederation.after(setup.federation, context.method, start, setup.partition.groups)
        self.points = self.kind.points(self.spec)
        self.tests = TestRows.of(self.federation.rows("test"))
        self.labels, self.classes = setup.test.labels[self.tests.rows], len(setup.task.classes)
        known = self.federation, setup.test.labels, self.classes, engine
        self.start = deployed_matrix(method, context.method, state, *known)
        self.kept = self._kept_points()

    def _kept_points(self) -> range:
        """Return the points whose models may be deployed; none, with a note, if the files would be too large."""
        points = range(len(self.points))[0 if self.spec.select == "valid" else -1 :]
        size = len(points) * len(self.federation.clients) * self.federation.model.weights.nbytes
        if size <= MODELS_BYTES:
            return points
        hint = ". To save the last ones, use method.personalization.select=last" if len(points) > 1 else ""
        self.context.note(f"The personalized models are evaluated but not saved: {size / 2**30:.1f} GiB{hint}.")
        return range(0)

    def _model_file(self, point: int, client: int) -> Path:
        return self.context.folder / MODELS_FOLDER / f"{point}-{client}.safetensors"

    def begin(self) -> FederatedState:
        """Return the state before the first round: an empty record."""
        points, clients = len(self.points), len(self.federation.clients)
        return self.kind.method.init(self.spec, self.federation) | {
            "record/correct": torch.zeros(points, clients, clients, dtype=torch.int32),
            "record/loss": torch.zeros(points, clients, clients, dtype=torch.float64),
            "record/valid": torch.zeros(points, clients, dtype=torch.int32),
            "record/logits": torch.zeros(points, len(self.tests.places), self.classes),
        }

    def advance(self, state: FederatedState, round: int, rows: list[LogRow]) -> Advanced:
        """Train, fold and measure one round: see :data:`~knot_runner.pipelines.rounds.Advance`."""
        kind, spec, federation, flops = self.kind, self.spec, self.federation, self.setup.example_flops
        requests = kind.method.plan(spec, state, federation, round)
        if not requests:
            return None
        trained = self.engine.train(requests)
        check_outcomes(round, trained, federation, "a smaller method.personalization.lr")
        state, row = kind.method.fold(spec, state, federation, round, requests, trained)
        for number, models in kind.measured(spec, federation, state, round):
            self._record(state, number, models)
        self.context.progress("personalization", round + 1, kind.rounds(spec, federation), "")
        row["client_flops"] = None if flops is None else sum(training_flops(request, flops) for request in requests)
        return state, row

    def _record(self, state: FederatedState, number: int, models: dict[int, ClientModel]) -> None:
        """Evaluate the ``models`` of point ``number`` and record the counts.

        Raises:
            DivergedError: A logit is not finite.
        """
        federation, step = self.federation, self.points[number].step
        if self.points[number].mixed and any(federation.layout_of(client).buffer_size for client in models):
            models = self._estimated(number, models)
        if number in self.kept:
            for client, model in models.items():
                tensors = {"weights": model.weights, "buffers": model.buffers}
                write_atomic(self._model_file(number, client), tensor_parts(tensors))
        for client, logits in self._logits(models.items()):
            if not logits.isfinite().all():
                name = federation.clients[client].name
                what = f"diverged after the rounds at {name}, step {step}: the predictions of its model are not finite"
                raise DivergedError(what, step=step, client=name)
            correct, loss = count(self.tests, logits, self.labels, client)
            state["record/correct"][number, client] = correct
            state["record/loss"][number, client] = loss
            state["record/logits"][number, self.tests.owners == client] = logits[self.tests.own(client)].float()
        held = {client: rows for client, rows in enumerate(federation.rows("valid")) if client in models and len(rows)}
        requests = [federation.inference(client, models[client], rows, "train") for client, rows in held.items()]
        for (client, rows), logits in zip(held.items(), self.engine.logits(requests), strict=True):
            state["record/valid"][number, client] = int((logits.argmax(1) == self.setup.data.labels[rows]).sum())

    def _logits(self, models: Iterable[tuple[int, ClientModel]]) -> Iterator[tuple[int, Tensor]]:
        return logits_of(self.engine, self.tests, models, self.classes, self.federation)

    def _estimated(self, number: int, models: dict[int, ClientModel]) -> dict[int, ClientModel]:
        """Return the ``models`` of point ``number`` with new running statistics.

        The statistics are estimated on the clients' training examples, in one epoch with learning rate 0.
        """
        step, requests = self.points[number].step, []
        for client, model in models.items():
            recipe = personal_recipe(self.spec, self.federation, client, epochs=1)
            still = replace(recipe, lr=0.0, optimizer="sgd")
            requests.append(personal_training(self.federation, client, step, model, still))
        trained = self.engine.train(requests)
        return {result.client: ClientModel(models[result.client].weights, result.buffers) for result in trained}

    def result(self, state: FederatedState) -> tuple[PersonalModels, Facts]:
        """Summarize the record and write it into the run's folder; return the deployed models and the facts."""
        federation, before = self.federation, self.start
        correct, loss, valid = (state[f"record/{name}"] for name in ("correct", "loss", "valid"))
        sizes = [len(rows) for rows in federation.rows("train")]
        points, measures = [], []
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
        more = {}
        if self.kind.finish is not None:
            arrays_of_kind, more = self.kind.finish(self.spec, federation, state, self._losses)
            arrays |= arrays_of_kind
        write_atomic(self.context.folder / CLIENTS_FILE, tensor_parts(arrays | {"valid": valid}))
        curve = trade_offs(points, start, 1 / self.classes)
        facts = {"kind": self.spec.kind, "start": start, "points": points, "chosen": chosen, **curve, **more}
        models = {}
        if chosen in self.kept:
            for client in federation.everyone:
                models[client] = ClientModel(**load_file(self._model_file(chosen, client)))
        predictions = self._predictions(state["record/logits"][chosen])
        return PersonalModels(models, predictions, measures[chosen]), facts

    def _losses(self, client: int, models: Iterable[ClientModel]) -> Tensor:
        """Return each model's mean loss on every client's test examples [models, K].

        The loss is NaN for a client without counted test examples.
        """
        shown = self._logits((client, model) for model in models)
        losses = [count(self.tests, logits, self.labels, client)[1] for _, logits in shown]
        return torch.stack(losses) / self.start.examples[client].double()

    def _predictions(self, logits: Tensor) -> TestPredictions:
        sizes = [len(rows) for rows in self.federation.rows("test")]
        parts, labels = logits.split(sizes), self.labels[self.tests.places].split(sizes)
        hits = [(client_logits.argmax(1) == truth).double() for client_logits, truth in zip(parts, labels, strict=True)]
        accuracies = [float(client_logits.mean()) if len(client_logits) else None for client_logits in hits]
        seen, unseen = list(self.federation.numbers), self.federation.unseen
        return TestPredictions(
            torch.cat([parts[client] for client in seen]),
            torch.cat([labels[client] for client in seen]),
            [accuracies[client] for client in seen],
            [accuracies[client] for client in unseen],
        )
