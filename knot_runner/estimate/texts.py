"""Jobs on texts, in a process apart: their stages as the method plans them, and what these take, from the progress of
short runs of the jobs' own pipeline on ever more of the texts."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from knot_runner.composing.job import ComposedJob
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import StageSettings
from knot_runner.config.strict import digest
from knot_runner.data.load import load_task
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.execute import Executor
from knot_runner.engine.requests import Ref, StageRequest, Train, request_title
from knot_runner.engine.stages import key_of
from knot_runner.engine.store import Artefact, Store
from knot_runner.estimate.child import Tell, run_apart
from knot_runner.estimate.pieces import EVALUATION, START_KIND, WORKERS, Cost, Piece, distil_kind, teacher_kind
from knot_runner.estimate.timed import THROUGH, KindTime, ProgressEvent, costs_of, stage_seconds
from knot_runner.methods import knot  # noqa: F401  with its methods in the table
from knot_runner.methods.contract import METHODS
from knot_runner.pipelines.text_federation import load_vocabulary, make_federation, stage_lengths
from knot_runner.util.errors import UserError

#: What a worker process imports before its first step, and the first step otherwise: seconds.
PRELOADED_MODULES = ("torch._dynamo", "transformers.models.bert.modeling_bert")
#: Texts of a split in the first short run, and how many times as many each further one has.
FIRST_ROWS, GROWTH = 64, 8
#: stage of a request -> what it is called where jobs share it
SHARED = {
    "local": "local models",
    "pretrain": "global models",
    "soft_labels": "sets of soft labels",
    "bias": "biases",
    "distil": "students",
}


@dataclass(frozen=True)
class PlannedStage:
    """A piece with its request, and how many texts that reads (a training: in an epoch)."""

    piece: Piece
    request: StageRequest
    rows: int


def plan_and_time(tell: Tell, folder: Path, jobs: list[ComposedJob], known: set[str], until: float) -> None:
    """Tell the pieces of ``jobs`` (of one family), then the costs of their kinds, some of which are ``known``.

    Stages below ``paths.out`` count as there; nothing in it is changed. ``until``: moment at which the timing ends.
    """
    first = jobs[0].settings
    load_plugins(first.plugins)
    for name in PRELOADED_MODULES:
        importlib.import_module(name)
    tell("ready")
    began = time.monotonic()
    data_root = Path(first.paths.data).expanduser() if first.paths.data else None
    task = load_task(first.task, data_root)
    words = load_vocabulary(first.model, task, data_root)
    tell("cost", START_KIND, Cost(0.0, time.monotonic() - began))
    vocabulary = folder / "vocab.txt"  # learnt once; what the requests' keys hold of it stays the same
    vocabulary.write_text("\n".join(words), encoding="utf-8")
    model = dataclasses.replace(first.model, vocab=str(vocabulary))
    planner = Planner(task, PlanStore(folder / "plan", behind=Store(Path(first.paths.out) / "artefacts")), data_root)
    chosen: list[tuple[ComposedJob, list[PlannedStage]]] = []
    for job in jobs:
        own = dataclasses.replace(job, settings=dataclasses.replace(job.settings, model=model))
        pieces, stages = planner.plan(own)
        tell("pieces", pieces)
        kinds = {piece.kind for piece in pieces if not piece.there} - known
        known = known | kinds
        if kinds:
            chosen.append((own, stages))
    _time(tell, folder, chosen, task, until)


# ----------------------------------------------------------------------------------------------------------- planning


@dataclass(frozen=True)
class PlanStore(Store):
    """Finds, and never changes, what is in the store ``behind``; encoded texts, of which a plan needs the names alone,
    count as there."""

    behind: Store = Store(Path())

    def find(self, stage: str, key: str) -> Artefact | None:
        return self.behind.find(stage, key) or (StandIn(stage, key, Path(), {}) if stage == "tokens" else None)


class StandIn(Artefact):
    """Stands for an artefact that is not there while a method plans on."""

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"logits": torch.zeros(1, self.info["classes"])}


class Planner:
    """Plans jobs on ``task`` by their method's own plan."""

    def __init__(self, task: PartyTask, store: PlanStore, data_root: Path | None) -> None:
        self._task, self._store, self._data_root = task, store, data_root
        self._federations: dict[str, Any] = {}

    def plan(self, job: ComposedJob) -> tuple[list[Piece], list[PlannedStage]]:
        """The job's pieces in order, and those of them that its method asks for."""
        settings, hp, method = job.settings, job.method, METHODS[job.settings.method["algorithm"]]
        alike = repr((settings.seed, hp.bias, stage_lengths(settings)))
        if alike not in self._federations:
            made = make_federation(settings, self._task, self._store, self._data_root, hp.bias)
            self._federations[alike] = made
        federation = dataclasses.replace(self._federations[alike], training=settings.training)
        rows = {ref: len(self._task.datasets[name].splits[split]) for (name, split), ref in federation.examples.items()}
        rows[federation.random_examples] = hp.bias.texts
        state, round, stages = method.init(hp, federation), 0, []
        while requests := method.plan(hp, state, federation, round):
            found = [self._store.find(*key_of(request)) for request in requests]
            stages += [_planned(r, rows, round + 1, f is not None) for r, f in zip(requests, found, strict=True)]
            stand_ins = [f or _stand_in(r) for r, f in zip(requests, found, strict=True)]
            state, _ = method.fold(hp, state, federation, round, requests, stand_ins)
            round += 1
        start = Piece(START_KIND, "texts, reading them", f"start {job.run_id}", START_KIND)
        tests = float(rows_of_tests(self._task))
        end = Piece("evaluations", "evaluation", f"evaluation {job.run_id}", EVALUATION, tests, round + 1)
        return [_workers(stages), start, *(stage.piece for stage in stages), end], stages


def _stand_in(request: StageRequest) -> StandIn:
    return StandIn(*key_of(request), Path(), {"best_score": 0.0, "best_epoch": 0, "classes": request.network.classes})


def _planned(request: StageRequest, rows: dict[Ref, int], step: int, there: bool) -> PlannedStage:
    key, shared = "/".join(key_of(request)), SHARED.get(request.stage, request.stage)
    if not isinstance(request, Train):
        count = rows[request.examples]
        return PlannedStage(Piece(shared, shared, key, request_title(request), count, step, there), request, count)
    epochs, batch = request.training.epochs, request.training.batch
    name = teacher_kind(request.party, batch)
    if request.start is not None:
        name = distil_kind(batch, request.objective.settings["loss"])
    title = f"{name.partition(', batch')[0]}, {epochs} epoch{'s' * (epochs > 1)}"
    return PlannedStage(Piece(shared, title, key, name, epochs, step, there), request, rows[request.train.examples])


def _workers(stages: list[PlannedStage]) -> Piece:
    """Starting the processes that a job's teachers train in; a job that finds its teachers needs none."""
    teachers = [stage.piece for stage in stages if isinstance(stage.request, Train) and stage.piece.step == 1]
    there = all(piece.there for piece in teachers)
    return Piece(WORKERS, WORKERS, digest([piece.key for piece in teachers]), WORKERS, step=-1, there=there)


# ------------------------------------------------------------------------------------------------------------- timing


class _TimeIsUpError(Exception):
    """Ends a short run."""


class _Announcing(Executor):
    """Reports when it is asked for stages: what has passed since the last of them is no stage's time."""

    def __call__(self, requests: list[StageRequest]) -> list[Artefact]:
        self._watch("", 0, 1, "")
        return super().__call__(requests)


def _time(
    tell: Tell, folder: Path, chosen: list[tuple[ComposedJob, list[PlannedStage]]], task: PartyTask, until: float
) -> None:
    """Tell costs from runs on ever more texts, each of which replaces what was told before."""
    seen: dict[str, dict[str, KindTime]] = {}
    most = max(len(examples) for data in task.datasets.values() for examples in data.splits.values())
    trainings = [stage for _, stages in chosen for stage in stages if isinstance(stage.request, Train)]
    epochs = {stage.piece.kind: stage.rows for stage in trainings}
    batch = max((stage.request.training.batch for stage in trainings), default=0)
    rows = FIRST_ROWS
    while chosen and time.monotonic() < until:
        part, out = _cut(task, rows), folder / str(rows)
        for job, stages in chosen:
            events = short_run(job, part, rows, out, until)
            found = kind_times(events, stages, rows, rows_of_tests(part))
            for kind, cost in costs_of(found, seen.get(job.run_id, {}), epochs).items():
                tell("cost", kind, cost)
            seen[job.run_id] = found
        tell("model", max((file.stat().st_size for file in out.glob("artefacts/local/*/*.safetensors")), default=0))
        if rows >= min(batch, most) and events[-1][4] == THROUGH:
            tell("full batches")
        shutil.rmtree(out, ignore_errors=True)
        if rows >= most:
            return
        rows *= GROWTH


def short_run(job: ComposedJob, part: PartyTask, rows: int, out: Path, until: float) -> list[ProgressEvent]:
    """What the job's own pipeline reports of a run in ``out`` on ``part`` of the texts, two epochs a stage, in one
    process, as far as it comes until the moment ``until``."""
    events: list[ProgressEvent] = []

    def watch(title: str, done: int, total: int, text: str) -> None:
        events.append((time.monotonic(), title, done, total, text))
        if events[-1][0] > until:
            raise _TimeIsUpError

    training, hardware = job.settings.training, dataclasses.replace(job.settings.hardware, workers=1)
    stages = {name: stage for name, stage in vars(training).items() if isinstance(stage, StageSettings)}
    twice = {name: dataclasses.replace(stage, epochs=2) for name, stage in stages.items()}
    settings = dataclasses.replace(job.settings, hardware=hardware, training=dataclasses.replace(training, **twice))
    bias = dataclasses.replace(job.method.bias, texts=min(job.method.bias.texts, rows))
    short = dataclasses.replace(job, settings=settings, method=dataclasses.replace(job.method, bias=bias))
    with contextlib.suppress(_TimeIsUpError, UserError):  # few texts may be too few: it is no mistake of the user's
        watch("", 0, 1, "")
        result = run_apart("run", short, out, watch, texts=lambda *_: part, executor=_Announcing)
        watch("", 1, 1, THROUGH if result["status"] == "done" else "")
    shutil.rmtree(out / "run", ignore_errors=True)  # of each job anew; stages below ``out`` are shared
    return events


def _cut(task: PartyTask, rows: int) -> PartyTask:
    """At most ``rows`` texts of every split, from all over it."""
    datasets = {}
    for name, data in task.datasets.items():
        some = {s: np.linspace(0, len(e) - 1, min(rows, len(e))).astype(int) for s, e in data.splits.items()}
        splits = {split: examples.take(some[split]) for split, examples in data.splits.items()}
        datasets[name] = dataclasses.replace(data, splits=splits)
    return dataclasses.replace(task, datasets=datasets)


def rows_of_tests(task: PartyTask) -> int:
    """Test texts of all parties."""
    return sum(len(data.splits["test"]) for data in task.datasets.values() if "test" in data.splits)


def kind_times(events: list[ProgressEvent], stages: list[PlannedStage], rows: int, tests: int) -> dict[str, KindTime]:
    """Kind -> what a run on at most ``rows`` texts a split, ``tests`` of them in test sets, has shown of it.

    What is of no planned stage is evaluation, of which predictions alone grow with the texts.
    """
    seconds = stage_seconds(events)
    texts: dict[str, list[int]] = {}
    for stage in stages:
        texts.setdefault(request_title(stage.request), []).append(min(stage.rows, rows))
    found: dict[str, KindTime] = {}
    for stage in stages:
        title = request_title(stage.request)
        if title in seconds:
            work, around = (part / len(texts[title]) for part in seconds[title])
            found[stage.piece.kind] = (statistics.mean(texts[title]), work, around)
    if events[-1][4] == THROUGH:
        predicted = sum(work for title, (work, _) in seconds.items() if title.startswith("predictions "))
        after = max((at for at, title, *_ in events if title in texts), default=events[0][0])
        found[EVALUATION] = (tests, predicted, events[-1][0] - after - predicted)
    return found
