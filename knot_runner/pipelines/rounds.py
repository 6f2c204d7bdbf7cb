"""Rounds of a federated method: plan, train, fold, observe, and commit often enough that a kill costs little."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knot_runner.engine.diverged import DivergedError
from knot_runner.engine.federated.cohort import Engine, LocalTraining, Trained
from knot_runner.methods.contract import Method
from knot_runner.methods.federated.population import FederatedState, Population
from knot_runner.pipelines.commits import Commits
from knot_runner.pipelines.context import RunContext

#: One row of a round's log.
LogRow = dict[str, Any]
#: (state, requests, trained, round, whether to measure) -> the round's row, without its number and seconds
Observe = Callable[[FederatedState, list[LocalTraining], list[Trained], int, bool], LogRow]


@dataclass(frozen=True)
class RoundLoop:
    """What goes through rounds. ``data``: what a commit must have been made with to be gone on from (a digest);
    ``folder``: where commits and the log lie; ``log``: is given the numbers of every row."""

    method: Method
    population: Population
    data: str
    folder: Path
    observe: Observe
    log: Callable[[LogRow], None] | None = None


@dataclass(frozen=True)
class TrainingResult:
    """What rounds came to: the method and state that are deployed, all rows, and what else the result holds.

    ``seconds``: of what came before the rounds.
    """

    method: Method
    state: FederatedState
    rows: list[LogRow]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class RoundLog:
    """The rounds of one course: their log (``rows``) and when to commit."""

    def __init__(self, context: RunContext, engine: Engine, course: RoundLoop) -> None:
        self.context, self.engine, self.course = context, engine, course
        self.commits = Commits(course.folder, course.data, context.note, context.code)
        self.rows: list[LogRow] = []

    def run(self, start: FederatedState) -> FederatedState:
        """All rounds from the last commit on; ``start`` is the state before round 0. Raises :class:`DivergedError`."""
        hp, training = self.context.hp, self.context.settings.training
        method, population = self.course.method, self.course.population
        commit, self.rows = self.commits.resume()
        state, round = (commit.tensors if commit.step >= 0 else start), commit.step + 1
        while not self._stops() and (requests := method.plan(hp, state, population, round)):
            began = time.monotonic()
            trained = self.engine.train(requests)
            check_outcomes(round, trained, population)
            state, said = method.fold(hp, state, population, round, requests, trained)
            last = round + 1 >= training.rounds
            measured = last or (round + 1) % training.evaluate_every == 0
            row = {"round": round, **said, **self.course.observe(state, requests, trained, round, measured)}
            self.rows.append(row | {"seconds": time.monotonic() - began})
            if self.course.log is not None:
                self.course.log(scalars(row))
            self._show(round)
            if last or self._stops() or self.commits.due():
                self.commits.save(round, state, self.rows)
            round += 1
        self.context.progress("rounds", 1, 1, "done")
        return state

    def _stops(self) -> bool:
        """Whether the last round reached the target of a run that ends there."""
        training = self.context.settings.training
        if not training.stop_at_target or not self.rows or "accuracy" not in self.rows[-1]:
            return False
        return self.rows[-1]["accuracy"] >= training.target

    def _show(self, round: int) -> None:
        accuracy = next((row["accuracy"] for row in reversed(self.rows) if "accuracy" in row), None)
        text = "" if accuracy is None else f"accuracy {accuracy:.3f}"
        self.context.progress("rounds", round + 1, self.context.settings.training.rounds, text)


def scalars(row: LogRow) -> LogRow:
    """What of a row is one number."""
    return {key: value for key, value in row.items() if isinstance(value, int | float)}


def check_outcomes(round: int, trained: list[Trained], population: Population) -> None:
    """Raises :class:`DivergedError` naming round and client for a loss or weight that is not finite."""
    for result in trained:
        if not (math.isfinite(result.loss) and result.finite):
            name = population.names[result.client]
            raise DivergedError(
                f"diverged in round {round} at {name}: its weights are not finite; a smaller training.lr, or a "
                "higher method.temperature, would be the first to try",
                round=round,
                client=name,
            )
