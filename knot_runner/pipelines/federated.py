"""Federated learning: deal images to clients, then round by round plan, train, fold, measure and commit."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from knot_runner import metrics
from knot_runner.engine.commit import save_bytes
from knot_runner.engine.diverged import DivergedError
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import Engine, LocalTraining, Trained
from knot_runner.methods.federated import FEDERATED, FederatedMethod
from knot_runner.methods.federated.population import FederatedState, Population
from knot_runner.pipelines import scores
from knot_runner.pipelines.context import RunContext, RunInputs
from knot_runner.pipelines.rounds import LogRow, RoundLog, RoundLoop, TrainingResult
from knot_runner.pipelines.setup import Setup, client_counts, make_setup
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic, write_json

#: (errand, ground, method, engine) -> what was learnt
Learn = Callable[[RunContext, Setup, FederatedMethod, Engine], TrainingResult]


def run_federated(errand: RunContext) -> dict[str, Any]:
    """The whole federated run, of all clients together or of clusters of them; the result's content.

    Raises :class:`UserError`.
    """
    began = time.monotonic()
    hp = errand.hp
    if hp.algorithm not in FEDERATED:
        raise UserError(f"method.algorithm: no algorithm {hp.algorithm!r}{nearest(hp.algorithm, FEDERATED)}")
    ground = make_setup(errand)
    method = FEDERATED[hp.algorithm]
    start = method.init(hp, ground.population)  # whether the method fits is known before anything is measured
    notes = ground.notes
    for note in notes:
        errand.say(note)
    learn: Learn = functools.partial(_learn, start)
    if hp.clustering is not None:
        from knot_runner.pipelines import clustered  # scikit-learn and the distances, which others do without

        grouping = clustered.group_clients(errand, ground)
        notes += grouping.notes
        for note in grouping.notes:
            errand.say(note)
        learn = functools.partial(clustered.learn, grouping)
    result = _train(errand, ground, method, learn, notes)
    return {**result, "seconds": {"total": round(time.monotonic() - began, 2), **result["seconds"]}}


def inspect_federated(errand: RunContext) -> RunInputs:
    """What the run reads, and what is to be said of it. Raises :class:`UserError`."""
    ground = make_setup(errand)
    return RunInputs(ground.task, ground.partition, ground.counts, ground.notes)


def _train(
    errand: RunContext, ground: Setup, method: FederatedMethod, learn: Learn, notes: list[str]
) -> dict[str, Any]:
    """All that needs the engine; the result's content."""
    settings = errand.settings
    with contextlib.ExitStack() as stack:
        engine = errand.means.engine(settings.hardware, ground.blueprint, ground.data, ground.test, errand.say)
        stack.callback(engine.close)
        errand.say(f"engine {engine.name}, {settings.hardware.precision}")
        head = _describe(errand, ground, engine)
        write_atomic(errand.folder / "config.yaml", errand.config_yaml)
        write_json(errand.folder / "partition.json", client_counts(ground))
        try:
            learnt = learn(errand, ground, method, engine)
        except DivergedError as problem:
            errand.say(str(problem))
            told = {"diverged": problem.where, "metrics": {}, "notes": [*notes, str(problem)], "seconds": {}}
            return {**head, "status": "diverged", **told}
        summary = summarise(learnt.rows, settings.training.target)
        _keep(errand, ground, learnt, engine)
    seconds = {"rounds": round(sum(row["seconds"] for row in learnt.rows), 2), **learnt.seconds}
    return {**head, "status": "done", **summary, **learnt.facts, "notes": notes, "seconds": seconds}


def _learn(
    start: FederatedState, errand: RunContext, ground: Setup, method: FederatedMethod, engine: Engine
) -> TrainingResult:
    """All clients together: one global model."""
    observe = functools.partial(_observe, errand, ground, method, engine)
    course = RoundLoop(method, ground.population, ground.task.digest, errand.folder, observe, errand.log)
    rounds = RoundLog(errand, engine, course)
    return TrainingResult(method, rounds.run(start), rounds.rows)


def _observe(
    errand: RunContext,
    ground: Setup,
    method: FederatedMethod,
    engine: Engine,
    state: FederatedState,
    requests: list[LocalTraining],
    trained: list[Trained],
    round: int,
    measured: bool,
) -> LogRow:
    row = scores.local_facts(requests, trained)
    if not measured:
        return row
    found = scores.predict_test(method, errand.hp, state, ground.population, ground.test.labels, engine)
    scores.check_logits(found, round)
    heat = scores.evaluation_temperature(errand.hp, round)
    return row | scores.score(found, ground.population, heat, ground.task.coordinates)


def summarise(rows: list[dict[str, Any]], target: float | None) -> dict[str, Any]:
    """The result's measures: of the last measured round, the best accuracy, and the first round at ``target``."""
    measured = [row for row in rows if "accuracy" in row]
    last = measured[-1]
    best = max(row["accuracy"] for row in measured)
    keys = ["accuracy", *(key for key in metrics.METRICS if key != "accuracy" and isinstance(last.get(key), float))]
    curve = [(row["round"], row["accuracy"]) for row in measured]
    return {
        "metrics": {key: {"ALL": last[key]} for key in keys} | {"client_accuracy": last["client_accuracy"]},
        "best": {"accuracy": best, "round": metrics.rounds_to_target(curve, best)},
        "target": target,
        "rounds_to_target": metrics.rounds_to_target(curve, target),
        "rounds": len(rows),
        "rounds_count": metrics.ROUNDS_COUNT,
    }


def _describe(errand: RunContext, ground: Setup, engine: Engine) -> dict[str, Any]:
    return {
        **errand.describe(ground.task.digest, ground.task.source, engine.device, ground.task.files),
        "kind": "federated",
        "datasets": {"train": len(ground.task.train), "test": len(ground.task.test)},
        "label_counts": ground.counts.record(),
        "labels": {"names": ground.task.classes, "coordinates": ground.task.coordinates},
        "clients": len(ground.population),
        "engine": engine.name,
        "precision": errand.settings.hardware.precision,
        "model": ground.blueprint.spec.name,
        "parameters": ground.population.layout.size,
    }


def _keep(errand: RunContext, ground: Setup, learnt: TrainingResult, engine: Engine) -> None:
    """The last predictions on all test images, and the final state, into the run's folder."""
    found = scores.predict_test(learnt.method, errand.hp, learnt.state, ground.population, ground.test.labels, engine)
    probabilities = torch.softmax(found.logits.double(), 1).float()
    arrays = {"test.probabilities": probabilities, "test.labels": found.labels}
    write_atomic(errand.folder / "predictions.safetensors", save_bytes(arrays))
    write_atomic(errand.folder / "model.safetensors", save_bytes(named(ground.population, learnt.state)))


def named(population: Population, state: FederatedState) -> dict[str, Tensor]:
    """Each global model by parameter names, with what clients keep of their own; ``cluster/<c>/`` before each of
    several."""
    layout, tensors = population.layout, {}
    for key, value in state.items():
        prefix, slash, name = key.rpartition("/")
        if name in ("weights", "buffers"):
            own = flat.views(value, layout.parameters if name == "weights" else layout.buffers)
            tensors |= {f"{prefix}{slash}{parameter}": tensor for parameter, tensor in own.items()}
        elif prefix.split("/")[-1] in ("head", "buffers"):
            tensors[key] = value
    return tensors
