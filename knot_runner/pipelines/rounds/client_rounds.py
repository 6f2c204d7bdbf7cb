"""Rounds of client training: executed by an engine, checked, evaluated periodically, stopped at a target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from knot_runner.config.settings import Centralized, FederatedTraining
from knot_runner.engine.federated.cohort import Engine
from knot_runner.methods.around.costs import round_flops
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.methods.messages import check_outcomes, fold_and_exchange, is_over
from knot_runner.metrics import ACCURACY
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds import scores
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients.setup import Setup


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
        """Train, fold, exchange and evaluate one round; see :data:`~knot_runner.pipelines.rounds.loop.Advance`.

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
            means = scores.over_clusters(predictions.clients, federation, self.clusters)
            row["client_accuracy"]["clusters"] = means
        return row


def reached_target(training: FederatedTraining, rows: list[LogRow]) -> bool:
    """Return whether the run stops at its target accuracy and the last round reached it."""
    if not training.stop_at_target or not rows or ACCURACY not in rows[-1]:
        return False
    return bool(rows[-1][ACCURACY] >= training.target)
