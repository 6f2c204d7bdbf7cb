"""Jobs in stages: their pieces, as planned by their method, and which of these are already done."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from knot_runner.composing.job import ComposedJob
from knot_runner.config.settings import DistilSettings, StageSettings
from knot_runner.config.strict import digest
from knot_runner.data.shared import SharedTasks
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.loop import key_of
from knot_runner.engine.requests import Predict, Ref, StageRequest, request_title
from knot_runner.engine.store import Artefact, Store
from knot_runner.estimate.child import context_apart
from knot_runner.estimate.pieces import (
    EVALUATION,
    START_KIND,
    WORKERS,
    Piece,
    mutual_kind,
    soft_targets_kind,
    students_kind,
    synthesis_kind,
    teacher_kind,
)
from knot_runner.methods.contract import METHODS
from knot_runner.methods.distil.requests import PickStudent, TrainStudents
from knot_runner.methods.distil.synthesis.requests import MakeImages, ReleaseRecords, steps_of
from knot_runner.methods.mutual import TrainParties
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.federations.parties import used_count
from knot_runner.pipelines.parties.setup import make_federation, read_parties
from knot_runner.util.messages import counted

#: Stages in which the store keeps texts and images.
EXAMPLE_STAGES = ("tokens", "images")
#: stage of a request -> its name as a shared stage
SHARED = {
    "local": "local models",
    "pretrain": "global models",
    "soft_labels": "sets of soft labels",
    "bias": "biases",
    "distil": "students",
    "picked": "students",
    "mutual": "parties that learn from each other",
    "records": "sets of records",
    "synthetic": "sets of images made from teachers",
}


@dataclass(frozen=True)
class PlannedStage:
    """A piece with its request; ``rows``: examples that it reads (a training: per epoch)."""

    piece: Piece
    request: StageRequest
    rows: int


@dataclass(frozen=True)
class PlanStore(Store):
    """Read-only view of the store ``behind``; examples count as present, since a plan needs only their names."""

    behind: Store = Store(Path())

    def find(self, stage: str, key: str) -> Artefact | None:
        return self.behind.find(stage, key) or (StandIn(stage, key, Path(), {}) if stage in EXAMPLE_STAGES else None)


class StandIn(Artefact):
    """Placeholder for a missing artefact, so that a method can continue planning."""

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"logits": torch.zeros(1, self.info["classes"])}


class Planner:
    """Plans jobs on one task with their method's own plan."""

    def __init__(self, store: PlanStore) -> None:
        self._store, self._data = store, SharedTasks()
        self._parties: dict[str, PartyTask] = {}
        self._federations: dict[str, Any] = {}

    def parties(self, job: ComposedJob) -> PartyTask:
        """The examples that the job reads; partitions of images differ by seed."""
        needed = [job.settings.seed if job.settings.on_images else 0]
        if isinstance(job.method, DistilSettings):
            needed = [job.settings.seed, job.method.labelled, job.method.valid, len(job.method.teachers)]
        if str(needed) not in self._parties:
            self._parties[str(needed)] = read_parties(self._context(job))
        return self._parties[str(needed)]

    def _context(self, job: ComposedJob) -> RunContext:
        services = {"images": self._data.images, "texts": self._data.texts, "unlabelled": self._data.unlabelled}
        return context_apart(job, self._store.root, lambda *_: None, **services)

    def plan(self, job: ComposedJob) -> tuple[list[Piece], list[PlannedStage]]:
        """Return (the job's pieces in order, those that its method requests)."""
        settings, hp, method = job.settings, job.method, METHODS[job.settings.method["algorithm"]]
        task = self.parties(job)
        trained = [stage for stage in vars(settings.training).values() if isinstance(stage, StageSettings)]
        used = [(stage.max_length, stage.limit) for stage in trained]
        bias = getattr(hp, "bias", None)
        needed = repr((settings.seed, bias or hp, used))
        if needed not in self._federations:
            self._federations[needed] = make_federation(self._context(job), task, self._store, bias)
        federation = dataclasses.replace(self._federations[needed], training=settings.training)
        rows = {
            ref: used_count(task.datasets[party.name], split, settings)
            for party in federation.parties
            for split, ref in party.examples.items()
        }
        if bias is not None:
            rows[federation.random] = bias.images if settings.on_images else bias.texts
        state, round, stages = method.init(hp, federation), 0, []
        while requests := method.plan(hp, state, federation, round):
            found = [self._store.find(*key_of(request)) for request in requests]
            rows |= {key_of(one): one.synthesis["images"] for one in requests if isinstance(one, MakeImages)}
            stages += [_planned(r, rows, round + 1, f is not None) for r, f in zip(requests, found, strict=True)]
            stand_ins = [f or _stand_in(r) for r, f in zip(requests, found, strict=True)]
            state, _ = method.fold(hp, state, federation, round, requests, stand_ins)
            round += 1
        start = Piece(START_KIND, "data, reading them", f"start {job.run_id}", START_KIND)
        tests = float(rows_of_tests(task))
        end = Piece("evaluations", "evaluation", f"evaluation {job.run_id}", EVALUATION, tests, round + 1)
        return [_workers(stages), start, *(stage.piece for stage in stages), end], stages


def _stand_in(request: StageRequest) -> StandIn:
    facts = {"best_score": 0.0, "best_epoch": 0, "terms": {}}
    if not isinstance(request, PickStudent):
        facts["classes"] = request.network.classes
    return StandIn(*key_of(request), Path(), facts)


def _planned(request: StageRequest, rows: dict[Ref, int], step: int, there: bool) -> PlannedStage:
    key, shared = "/".join(key_of(request)), SHARED.get(request.stage, request.stage)
    if isinstance(request, PickStudent):
        return PlannedStage(Piece(shared, shared, key, None, 1, step, there), request, 1)
    if isinstance(request, Predict | ReleaseRecords):
        count = rows[request.examples]
        return PlannedStage(Piece(shared, shared, key, request_title(request), count, step, there), request, count)
    if isinstance(request, MakeImages):
        kind, steps = synthesis_kind(request.synthesis, request.network.spec.name), steps_of(request.synthesis)
        return PlannedStage(Piece(shared, kind, key, kind, steps, step, there), request, steps)
    epochs, batch = request.training.epochs, request.training.batch
    if isinstance(request, TrainParties):
        name, count = mutual_kind(batch, len(request.parties), request.loss), rows[request.transfer.examples]
        title = f"{name.partition(', batch')[0]}, {counted(epochs, 'epoch')}"
        return PlannedStage(Piece(shared, title, key, name, epochs, step, there), request, count)
    name = teacher_kind(request.party, batch)
    if isinstance(request, TrainStudents):
        name = students_kind(batch, request.network.spec.name, request.terms, request.schedule)
    elif request.start is not None:
        name = soft_targets_kind(batch, request.objective.settings["loss"])
    title = f"{name.partition(', batch')[0]}, {counted(epochs, 'epoch')}"
    return PlannedStage(Piece(shared, title, key, name, epochs, step, there), request, rows[request.train.examples])


def _workers(stages: list[PlannedStage]) -> Piece:
    """The piece of starting worker processes for a job's teachers; no time if the teachers are cached."""
    teachers = [stage.piece for stage in stages if not isinstance(stage.request, Predict) and stage.piece.step == 1]
    there = all(piece.there for piece in teachers)
    return Piece(WORKERS, WORKERS, digest([piece.key for piece in teachers]), WORKERS, step=-1, there=there)


def rows_of_tests(task: PartyTask) -> int:
    """Number of test examples of all parties."""
    return sum(len(data.splits["test"]) for data in task.datasets.values() if "test" in data.splits)
