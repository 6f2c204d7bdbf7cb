"""Rounds of client training: executed by an engine, checked, evaluated periodically, stopped at a target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from knot_runner.config.settings import Centralized, FederatedTraining
from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.methods.around.costs import round_flops
from knot_runner.methods.around.server_distillation import SERVER
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.methods.messages import fold_and_exchange, is_over
from knot_runner.metrics import ACCURACY
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds import scores
from knot_runner.util.errors import DivergedError
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients.setup import Setup


@dataclass(frozen=True)
class CheckedEngine:
    """An ``engine`` for one ``round`` of ``federation``, whose results are checked."""

    engine: Engine
    federation: Federation
    round: int

    def train(self, requests: list[LocalTraining]) -> list[Trained]:
        """Train every request. Raises :class:`DivergedError`."""
        trained = self.engine.train(requests)
        check_outcomes(self.round, trained, self.federation)
        return trained

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Logits of every request."""
        return self.engine.logits(requests)


@dataclass(frozen=True)
class ClientRounds:
    """Rounds of ``method`` by the clients of ``setup``; ``clusters``: those that train separately, if any."""

    context: RunContext
    setup: Setup
    method: RoundMethod
    engine: Engine
    clusters: list[Federation]

    def advance(self, state: FederatedState, round: int, rows: list[LogRow]) -> tuple[FederatedState, LogRow] | None:
        """Train, fold, exchange and measure one round: see :data:`~knot_runner.pipelines.rounds.loop.Advance`.

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
        engine = CheckedEngine(self.engine, federation, round)
        trained = engine.train(requests) if requests else []
        work = requests, trained, engine
        state, row, further = fold_and_exchange(method, config, state, federation, round, *work)
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
    """Returns whether the last round reached the target accuracy of a run that stops at it."""
    if not training.stop_at_target or not rows or ACCURACY not in rows[-1]:
        return False
    return bool(rows[-1][ACCURACY] >= training.target)


def check_outcomes(
    round: int,
    trained: list[Trained],
    federation: Federation,
    remedy: str = "a smaller training.lr, or a higher method.temperature",
) -> None:
    """Raises :class:`DivergedError` naming round, client and ``remedy`` for a loss or weight that is not finite."""
    for result in trained:
        if not (math.isfinite(result.loss) and result.finite):
            name = "the server" if result.client == SERVER else federation.clients[result.client].name
            first = "a smaller method.server_distillation.lr" if result.client == SERVER else remedy
            number = round + 1
            raise DivergedError(
                f"diverged in round {number} at {name}: its weights are not finite. First try {first}",
                round=number,
                client=name,
            )
