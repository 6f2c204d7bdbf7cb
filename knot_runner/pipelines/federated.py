"""Federated learning: deal images to clients, then round by round plan, train, fold, measure and commit."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knot_runner import measures
from knot_runner.engine.commit import Checkpoint, save_bytes
from knot_runner.engine.diverged import DivergedError
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.choose import make_engine
from knot_runner.engine.federated.cohort import Engine, Trained
from knot_runner.errors import UserError, nearest
from knot_runner.files import write_atomic, write_json
from knot_runner.methods.federated import FEDERATED, FederatedMethod
from knot_runner.methods.federated.chilling import scheduled
from knot_runner.methods.federated.population import Population, State
from knot_runner.pipelines import scores
from knot_runner.pipelines.errand import Errand
from knot_runner.pipelines.ground import Ground, counts, prepare
from knot_runner.tracker import Tracker

#: A commit may take this share of the time since the last one; a kill costs the rounds in between, never a number.
COMMIT_SHARE = 0.1
#: ... but never more than so many seconds of work.
MOST_UNCOMMITTED = 60.0


def carry_out(errand: Errand) -> dict[str, Any]:
    """The whole federated run; the result's content. Raises :class:`UserError`."""
    began = time.monotonic()
    settings, hp = errand.settings, errand.hp
    if hp.algorithm not in FEDERATED:
        raise UserError(f"method.algorithm: no algorithm {hp.algorithm!r}{nearest(hp.algorithm, FEDERATED)}")
    ground = prepare(errand)
    method = FEDERATED[hp.algorithm]
    state = method.init(hp, ground.population)
    notes = [*ground.task.notes, *ground.partition.notes, *ground.population.check()]
    with contextlib.ExitStack() as stack:
        engine = make_engine(settings.hardware, ground.blueprint, ground.data, ground.test)
        stack.callback(engine.close)
        for note in (*notes, f"engine {engine.name}, {settings.hardware.precision}"):
            errand.say(note)
        head = _describe(errand, ground, engine)
        write_atomic(errand.folder / "config.yaml", errand.config_yaml)
        write_json(errand.folder / "partition.json", counts(ground))
        tracker = stack.enter_context(Tracker(settings.tracker, settings, errand.folder, errand.run_id, errand.say))
        rounds = _Rounds(errand, ground, method, engine, tracker)
        try:
            state = rounds.run(state)
        except DivergedError as problem:
            errand.say(str(problem))
            return {
                **head,
                "status": "diverged",
                "diverged": problem.where,
                "metrics": {},
                "notes": [*notes, str(problem)],
            }
        summary = summarise(rounds.rows, settings.training.target)
        tracker.finish(summary["metrics"])
        _keep(errand, ground, method, state, engine)
    seconds = {"total": round(time.monotonic() - began, 2), "rounds": round(sum(r["seconds"] for r in rounds.rows), 2)}
    return {**head, "status": "done", **summary, "notes": notes, "seconds": seconds}


class _Rounds:
    """The rounds of one run: their log (``rows``) and when to commit."""

    def __init__(
        self, errand: Errand, ground: Ground, method: FederatedMethod, engine: Engine, tracker: Tracker
    ) -> None:
        self.errand, self.ground, self.method = errand, ground, method
        self.engine, self.tracker = engine, tracker
        self.checkpoint = Checkpoint(errand.folder)
        self.rows: list[dict[str, Any]] = []

    def run(self, start: State) -> State:
        """All rounds from the last commit on; ``start`` is the state before round 0."""
        hp, population, training = self.errand.hp, self.ground.population, self.errand.settings.training
        state, committed = self._resume(start)
        cost, since = 0.0, time.monotonic()
        round = committed + 1
        while not self._stops() and (requests := self.method.plan(hp, state, population, round)):
            began = time.monotonic()
            trained = self.engine.train(requests)
            check_finite(round, trained, population)
            state = self.method.fold(hp, state, population, requests, trained)
            row = {"round": round, **scores.local_facts(requests, trained)}
            last = round + 1 >= training.rounds
            if last or (round + 1) % training.evaluate_every == 0:
                row |= self._measure(state, round)
            self.rows.append(row | {"seconds": time.monotonic() - began})
            self.tracker.log({key: value for key, value in row.items() if isinstance(value, int | float)})
            self._show(round)
            spent = time.monotonic() - since
            if last or self._stops() or spent > min(cost / COMMIT_SHARE, MOST_UNCOMMITTED):
                committed, cost = self._commit(state, committed, round)
                since = time.monotonic()
            round += 1
        self.errand.watch("rounds", 1, 1, "done")
        return state

    def _measure(self, state: State, round: int) -> dict[str, Any]:
        hp, ground = self.errand.hp, self.ground
        found = scores.predict(self.method, hp, state, ground.population, ground.test.labels, self.engine)
        if not bool(torch.isfinite(found.logits).all()):
            raise DivergedError(f"diverged in round {round}: the averaged model's logits are not finite", round=round)
        heat = 1.0 if hp.lr_control else scheduled(hp.temperature, hp.schedule, round)
        return scores.score(found, ground.population, heat, ground.task.coordinates)

    def _resume(self, start: State) -> tuple[State, int]:
        commit = self.checkpoint.load()
        if commit.step >= 0 and commit.values.get("data") != self.ground.task.digest:
            self.errand.say("the data changed since this run was interrupted; it begins afresh")
            self.checkpoint.clear()
            commit = self.checkpoint.load()
        self.rows = self.checkpoint.log()
        return (commit.tensors if commit.step >= 0 else start), commit.step

    def _commit(self, state: State, committed: int, round: int) -> tuple[int, float]:
        began = time.monotonic()
        self.checkpoint.save(round, state, {"data": self.ground.task.digest}, self.rows[committed - round :])
        return round, time.monotonic() - began

    def _stops(self) -> bool:
        """Whether the last round reached the target of a run that ends there."""
        training = self.errand.settings.training
        if not training.stop_at_target or not self.rows or "accuracy" not in self.rows[-1]:
            return False
        return self.rows[-1]["accuracy"] >= training.target

    def _show(self, round: int) -> None:
        accuracy = next((row["accuracy"] for row in reversed(self.rows) if "accuracy" in row), None)
        text = "" if accuracy is None else f"accuracy {accuracy:.3f}"
        self.errand.watch("rounds", round + 1, self.errand.settings.training.rounds, text)


def check_finite(round: int, trained: list[Trained], population: Population) -> None:
    """Raises :class:`DivergedError` naming round and client for a loss or weight that is not finite."""
    for result in trained:
        if not (np.isfinite(result.loss) and bool(torch.isfinite(result.weights).all())):
            name = population.names[result.client]
            raise DivergedError(
                f"diverged in round {round} at {name}: its weights are not finite; a smaller training.lr, or a "
                "higher method.temperature, would be the first to try",
                round=round,
                client=name,
            )


def summarise(rows: list[dict[str, Any]], target: float | None) -> dict[str, Any]:
    """The result's measures: of the last measured round, the best accuracy, and the first round at ``target``."""
    measured = [row for row in rows if "accuracy" in row]
    last = measured[-1]
    best = max(row["accuracy"] for row in measured)
    keys = [key for key in ("accuracy", "f1", "loss", "tempered_loss", "sd") if key in last]
    curve = [(row["round"], row["accuracy"]) for row in measured]
    return {
        "metrics": {key: {"ALL": last[key]} for key in keys} | {"client_accuracy": last["client_accuracy"]},
        "best": {"accuracy": best, "round": measures.rounds_to_target(curve, best)},
        "target": target,
        "rounds_to_target": measures.rounds_to_target(curve, target),
        "rounds": len(rows),
    }


def _describe(errand: Errand, ground: Ground, engine: Engine) -> dict[str, Any]:
    return {
        **errand.describe(ground.task.digest, ground.task.source, engine.device),
        "kind": "federated",
        "datasets": {"train": len(ground.task.train), "test": len(ground.task.test)},
        "labels": {"names": ground.task.classes, "coordinates": ground.task.coordinates},
        "clients": len(ground.population),
        "engine": engine.name,
        "precision": errand.settings.hardware.precision,
        "model": ground.blueprint.spec.name,
        "parameters": ground.population.layout.size,
    }


def _keep(errand: Errand, ground: Ground, method: FederatedMethod, state: State, engine: Engine) -> None:
    """The last predictions on all test images, and the final state, into the run's folder."""
    found = scores.predict(method, errand.hp, state, ground.population, ground.test.labels, engine)
    probabilities = torch.softmax(found.logits.double(), 1).float()
    arrays = {"test.probabilities": probabilities, "test.labels": found.labels}
    write_atomic(errand.folder / "predictions.safetensors", save_bytes(arrays))
    write_atomic(errand.folder / "model.safetensors", save_bytes(named(ground.population, state)))


def named(population: Population, state: State) -> dict[str, Tensor]:
    """The global model by parameter names, with what clients keep of their own."""
    layout = population.layout
    tensors = flat.views(state["weights"], layout.parameters) | flat.views(state["buffers"], layout.buffers)
    return tensors | {key: value for key, value in state.items() if key.startswith(("head/", "buffers/"))}
