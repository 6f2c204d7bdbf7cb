"""Times the stages of jobs in a child process, from the progress of short runs of the jobs' own pipeline on growing
subsets of the examples."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.composing.job import ComposedJob
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import DistilSettings, ModelSettings, StageSettings
from knot_runner.config.strict import by_key
from knot_runner.data.tasks import PartyTask
from knot_runner.engine.execute import Executor
from knot_runner.engine.requests import StageRequest, Train, request_title
from knot_runner.engine.store import Artefact, Store
from knot_runner.estimate.child import Tell, run_apart
from knot_runner.estimate.pieces import EVALUATION, START_KIND, Cost
from knot_runner.estimate.stages import PlannedStage, Planner, PlanStore, rows_of_tests
from knot_runner.estimate.timed import THROUGH, KindTime, ProgressEvent, costs_of, stage_seconds
from knot_runner.methods.distil.requests import TrainStudents
from knot_runner.methods.mutual import TrainParties
from knot_runner.util.errors import UserError

#: Modules that a worker imports before its first step, since importing them during that step takes seconds.
PRELOADED_MODULES = ["torch._dynamo"]
#: The same for texts.
TEXT_MODULES = ["transformers.models.bert.modeling_bert"]
#: Requests that train in epochs.
TRAININGS = (Train, TrainStudents, TrainParties)
#: Examples per split in the first short run, and the growth factor of each further one.
FIRST_ROWS, GROWTH = 64, 8


def plan_and_time(tell: Tell, folder: Path, jobs: list[ComposedJob], known: set[str], until: float) -> None:
    """Report the pieces of ``jobs`` (of one family), then the costs of their kinds except those in ``known``.

    Stages below ``paths.out`` count as done; nothing there is changed. ``until``: time at which timing ends.
    """
    first = jobs[0].settings
    load_plugins(first.plugins)
    for name in PRELOADED_MODULES + ([] if first.on_images else TEXT_MODULES):
        importlib.import_module(name)
    tell("ready")
    began = time.monotonic()
    planner = Planner(PlanStore(folder / "plan", behind=Store(Path(first.paths.out) / "artefacts")))
    task, model = planner.parties(jobs[0]), first.model
    if not first.on_images:
        model = _with_vocabulary(jobs[0], task, folder / "tokenizer.json")
    tell("cost", START_KIND, Cost(0.0, time.monotonic() - began))
    chosen: list[tuple[ComposedJob, list[PlannedStage]]] = []
    for job in jobs:
        own = dataclasses.replace(job, settings=dataclasses.replace(job.settings, model=model))
        pieces, stages = planner.plan(own)
        tell("pieces", pieces)
        kinds = {piece.kind for piece in pieces if piece.kind and not piece.there} - known
        known = known | kinds
        if kinds:
            chosen.append((own, stages))
    _time(tell, folder, chosen, task, until)


def _with_vocabulary(job: ComposedJob, task: PartyTask, file: Path) -> ModelSettings:
    """The job's model with its vocabulary in ``file``, learnt once; the requests' keys do not change."""
    from knot_runner.pipelines.federations.texts import load_tokenizer

    model, data = job.settings.model, job.settings.paths.data
    tokenizer = load_tokenizer(model, task, Path(data).expanduser() if data else None)
    tokenizer.save(str(file))
    return dataclasses.replace(model, vocab=str(file))


class _TimeIsUpError(Exception):
    """Ends a short run."""


class _Announcing(Executor):
    """Executor that reports each request for stages, since the time since the last stage belongs to none."""

    def __call__(self, requests: list[StageRequest]) -> list[Artefact]:
        self._watch("", 0, 1, "")
        return super().__call__(requests)


def _time(
    tell: Tell, folder: Path, chosen: list[tuple[ComposedJob, list[PlannedStage]]], task: PartyTask, until: float
) -> None:
    """Report costs from runs on growing numbers of examples; each report replaces the last."""
    seen: dict[str, dict[str, KindTime]] = {}
    most = max(len(examples) for data in task.datasets.values() for examples in data.splits.values())
    trainings = [stage for _, stages in chosen for stage in stages if isinstance(stage.request, TRAININGS)]
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
    """Progress events of the job's own pipeline on ``part`` of the examples in ``out``, with two epochs per stage, in
    one process, up to the time ``until``."""
    events: list[ProgressEvent] = []

    def watch(title: str, done: int, total: int, text: str) -> None:
        events.append((time.monotonic(), title, done, total, text))
        if events[-1][0] > until:
            raise _TimeIsUpError

    training, hardware = job.settings.training, dataclasses.replace(job.settings.hardware, workers=1)
    stages = {name: stage for name, stage in vars(training).items() if isinstance(stage, StageSettings)}
    twice = {name: dataclasses.replace(stage, epochs=2) for name, stage in stages.items()}
    settings = dataclasses.replace(job.settings, hardware=hardware, training=dataclasses.replace(training, **twice))
    method = job.method
    if getattr(method, "bias", None) is not None:
        bias = dataclasses.replace(
            method.bias, texts=min(method.bias.texts, rows), images=min(method.bias.images, rows)
        )
        method = dataclasses.replace(method, bias=bias)
    if isinstance(method, DistilSettings):
        if method.synthesis is not None:
            method = dataclasses.replace(method, synthesis=_few_steps(method.synthesis, rows))
        if phases := method.schedule.get("phases"):
            method = dataclasses.replace(
                method, schedule={**method.schedule, "phases": [{**phase, "epochs": 2} for phase in phases]}
            )
    short = dataclasses.replace(job, settings=settings, method=method)
    with contextlib.suppress(_TimeIsUpError, UserError):  # a subset may be too small, which is no user error
        watch("", 0, 1, "")
        result = run_apart("run", short, out, watch, parties=lambda _: part, executor=_Announcing)
        watch("", 1, 1, THROUGH if result["status"] == "done" else "")
    shutil.rmtree(out / "run", ignore_errors=True)  # each job runs afresh; stages below ``out`` are shared
    return events


def _few_steps(synthesis: dict[str, Any], rows: int) -> dict[str, Any]:
    """``synthesis`` with about ``rows`` steps, in whole batches of images."""
    images = min(synthesis["images"], max(rows, synthesis["batch"]))
    batches = 1 if synthesis["kind"] == "generator" else -(-images // synthesis["batch"])
    return {**synthesis, "images": images, "steps": max(1, min(synthesis["steps"], rows // batches))}


def _cut(task: PartyTask, rows: int) -> PartyTask:
    """``task`` with at most ``rows`` evenly spread examples of every split."""
    datasets = {}
    for name, data in task.datasets.items():
        some = {s: np.linspace(0, len(e) - 1, min(rows, len(e))).astype(int) for s, e in data.splits.items()}
        splits = {split: examples.take(some[split]) for split, examples in data.splits.items()}
        datasets[name] = dataclasses.replace(data, splits=splits)
    return dataclasses.replace(task, datasets=datasets)


def kind_times(events: list[ProgressEvent], stages: list[PlannedStage], rows: int, tests: int) -> dict[str, KindTime]:
    """Kind -> its times in a run on at most ``rows`` texts per split, with ``tests`` texts in test sets.

    Events outside the planned stages are evaluation, of which only predictions grow with the examples.
    """
    seconds = stage_seconds(events)
    stages = [stage for stage in stages if stage.piece.kind is not None]
    texts = by_key((request_title(stage.request), min(stage.rows, rows)) for stage in stages)
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
