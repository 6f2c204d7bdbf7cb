"""The round loop of all methods: advance by a round, log it, and commit often enough that a kill costs little.

In federated runs (:class:`ClientRounds`), an engine trains each round. The round is checked and periodically evaluated,
and the loop ends when the target accuracy is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from knot_runner.config.settings.methods.federated import FederatedTraining
from knot_runner.config.settings.partition import Centralized
from knot_runner.engine.commit import Commits
from knot_runner.engine.federated.cohort import Engine
from knot_runner.methods.around import round_flops
from knot_runner.methods.contract import RoundMethod, State
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.methods.messages import check_outcomes, fold_and_exchange, is_over
from knot_runner.metrics import ACCURACY
from knot_runner.pipelines import scores
from knot_runner.pipelines.context import RunContext
from knot_runner.util.files import Facts, LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients import Setup
    from knot_runner.pipelines.personalization.personalized import PersonalModels

#: The state after a round and its log row; None: there is no further round.
Advanced = tuple[State, LogRow] | None
#: (state, round, rows so far) -> what the round makes of them
Advance = Callable[[State, int, list[LogRow]], Advanced]


@dataclass(frozen=True)
class TrainingResult:
    """The result of all rounds.

    It holds the deployed method and state, all rows, further facts for the result, and the seconds spent outside
    rounds. ``personal``: clients' own models after personalization.
    """

    method: RoundMethod
    state: State
    rows: list[LogRow]
    facts: Facts
    seconds: dict[str, float]
    personal: PersonalModels | None = None


def run_rounds(
    advance: Advance,
    commits: Commits,
    start: Callable[[], State],
    *,
    log: Callable[[LogRow], None] = lambda row: None,
    usable: Callable[[State], bool] = lambda state: True,
    timed: bool = True,
) -> tuple[State, list[LogRow]]:
    """Resume from the last commit and run the remaining rounds; return the final state and all rows.

    Args:
        advance: Advances by one round.
        commits: Store of the state.
        start: Creates the state before the first round.
        log: Receives every row.
        usable: Whether the run can resume from a committed state.
        timed: Whether each row holds the seconds of its round. Use False for artifacts, which hold their own
            seconds.

    Raises:
        DivergedError: A loss or weight is not finite.
    """
    commit, rows = commits.resume(lambda values, tensors: usable(_joined(values, tensors)))
    state = start() if commit.step < 0 else _joined(commit.values, commit.tensors)
    round, began = commit.step + 1, time.monotonic()
    while (advanced := advance(state, round, rows)) is not None:
        state, entries = advanced
        row = {"round": round + 1, **entries}
        rows.append(row | {"seconds": time.monotonic() - began} if timed else row)
        log(row)
        if commits.due():
            state = _commit(commits, round, state, rows)
        round, began = round + 1, time.monotonic()
    if commits.step < round - 1:
        state = _commit(commits, round - 1, state, rows)
    return state, rows


def by_requests(
    method: RoundMethod, config: Any, federation: Any, execute: Callable[[list[Any]], list[Any]]
) -> Advance:
    """Return a function that runs one round of ``method``: plan the requests, execute them, and fold the results.

    Training ends when the method plans no requests.
    """

    def _advance(state: State, round: int, rows: list[LogRow]) -> Advanced:
        requests = method.plan(config, state, federation, round)
        if not requests:
            return None
        return method.fold(config, state, federation, round, requests, execute(requests))

    return _advance


def scalars(row: LogRow) -> LogRow:
    """Return the scalar entries of a row."""
    return {key: value for key, value in row.items() if isinstance(value, int | float)}


def _joined(values: State, tensors: dict[str, Tensor]) -> State:
    return {**values.get("state", {}), **tensors}


def _commit(commits: Commits, round: int, state: State, rows: list[LogRow]) -> State:
    """Commit the state; return it with memory-mapped tensors where commits share them."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in state.items() if name not in tensors}
    return {**state, **commits.save(round, tensors, rows, {"state": plain} if plain else {})}


@dataclass(frozen=True)
class ClientRounds:
    """Rounds of ``method`` with the clients of ``setup``.

    ``clusters``: groups of clients that train separately, if any.
    """

    context: RunContext
    setup: Setup
    method: RoundMethod
    engine: Engine
    clusters: list[Federation]

    def advance(self, state: FederatedState, round: int, rows: list[LogRow]) -> tuple[FederatedState, LogRow] | None:
        """Train, fold, exchange and evaluate one round: see :data:`Advance`.

        Raises:
            DivergedError: A loss, weight or logit is not finite.
        """
        method, config, federation = self.method, self.context.method, self.setup.federation
        training = federation.training
        if reached_target(training, rows):
            return None
        requests = method.plan(config, state, federation, round)
        if not requests and is_over(method, config, state, federation, round):
            return None
        trained = self.engine.train(requests) if requests else []
        check_outcomes(round, trained, federation)
        state, row, further = fold_and_exchange(
            method, config, state, federation, round, requests, trained, self.engine
        )
        row |= scores.local_facts(requests, trained) | round_flops(self.setup.example_flops, requests, further)
        if isinstance(self.context.settings.partition, Centralized):
            row |= {"bytes_down": 0, "bytes_up": 0}  # all examples are in one place
        if training.measures(round):
            row |= self._measured(state, round)
        accuracies = [earlier[ACCURACY] for earlier in [*rows, row] if ACCURACY in earlier]
        shown = f"accuracy {accuracies[-1]:.3f}" if accuracies else ""
        self.context.progress("rounds", round + 1, training.rounds, shown)
        return state, row

    def _measured(self, state: FederatedState, round: int) -> LogRow:
        """Return every metric of the deployed models on test examples."""
        setup, config, federation = self.setup, self.context.method, self.setup.federation
        predictions = scores.predict_test(self.method, config, state, federation, setup.test.labels, self.engine)
        scores.check_logits(predictions, round)
        temperature = scores.evaluation_temperature(config, round)
        row = scores.score(predictions, federation, temperature, setup.task.coordinates)
        if self.clusters:
            row["client_accuracy"]["clusters"] = scores.over_clusters(predictions.clients, federation, self.clusters)
        return row


def reached_target(training: FederatedTraining, rows: list[LogRow]) -> bool:
    """Return whether the last round reached the target accuracy at which the run stops."""
    if not training.stop_at_target or not rows or ACCURACY not in rows[-1]:
        return False
    return bool(rows[-1][ACCURACY] >= training.target)
