"""Rounds of client training: executed by an engine, checked, evaluated periodically, stopped at a target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from knot_runner.config.settings import FederatedTraining
from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.methods.around.server_distillation import SERVER
from knot_runner.methods.contract import FurtherWork, RoundMethod
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.metrics import ACCURACY
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.pipelines.rounds.loop import RoundLoop, scalars
from knot_runner.pipelines.runs.commits import Commits
from knot_runner.util.errors import DivergedError, UserError
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients.setup import Setup

#: (round, state after it, requests, trained, what followed the fold, whether to measure) -> the round's row
MeasureRound = Callable[[int, FederatedState, list[LocalTraining], list[Trained], FurtherWork, bool], LogRow]


@dataclass(frozen=True)
class CheckedEngine:
    """An ``engine`` for one ``round`` of ``federation``, whose results are checked."""

    engine: Engine
    federation: Federation
    round: int

    def train(self, requests: list[LocalTraining]) -> list[Trained]:
        """Train every request. Raises :class:`DivergedError`."""
        trained = self.engine.train(requests) if requests else []
        check_outcomes(self.round, trained, self.federation)
        return trained

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Logits of every request."""
        return self.engine.logits(requests)


def client_rounds(
    context: RunContext, setup: Setup, method: RoundMethod, engine: Engine, measure: MeasureRound
) -> RoundLoop:
    """Rounds of local training by the clients of ``setup``, committed in the run's folder.

    ``measure``: makes a round's log row, with metrics every ``training.evaluate_every`` rounds and in the last.
    """
    training, federation = as_kind(context.settings.training, FederatedTraining), setup.federation
    shown = ""  # the last accuracy
    after: FurtherWork = {}  # the work after the current round's fold

    def execute(round: int, requests: list[LocalTraining]) -> list[Trained]:
        wrong = next((request for request in requests if not isinstance(request, LocalTraining)), None)
        if wrong is not None:
            raise UserError(f"plan returned a list with {type(wrong).__name__} instead of LocalTraining", "METHODS")
        return CheckedEngine(engine, federation, round).train(requests)

    def exchange(
        round: int, state: FederatedState, requests: list[LocalTraining], trained: list[Trained]
    ) -> tuple[FederatedState, LogRow]:
        after.clear()
        if method.exchange is None:
            return state, {}
        checked = CheckedEngine(engine, federation, round)
        state, row, work = method.exchange(context.hp, state, federation, round, requests, trained, checked)
        after.update(work)
        return state, row

    def observe(round: int, state: FederatedState, requests: list[LocalTraining], trained: list[Trained]) -> LogRow:
        nonlocal shown
        row = measure(round, state, requests, trained, after, training.measures(round))
        after.clear()  # requests hold models
        if ACCURACY in row:
            shown = f"accuracy {row[ACCURACY]:.3f}"
        context.progress("rounds", round + 1, training.rounds, shown)
        return row

    commits = Commits(context.folder, setup.task.digest, context.note, context.code, context.settings.plugins)
    return RoundLoop(
        method, context.hp, federation, commits, execute, observe, exchange,
        stops=functools.partial(reached_target, training),
        log=lambda row: context.log(scalars(row)),
        rounds=training.rounds if federation.sampling == "poisson" else 0,
    )  # fmt: skip


def reached_target(training: FederatedTraining, rows: list[LogRow]) -> bool:
    """Returns whether the last round reached the target accuracy of a run that stops at it."""
    if not training.stop_at_target or not rows or ACCURACY not in rows[-1]:
        return False
    return bool(rows[-1][ACCURACY] >= training.target)


def check_outcomes(
    round: int,
    trained: list[Trained],
    federation: Federation,
    remedy: str = "a smaller training.lr, or a higher method.temperature,",
) -> None:
    """Raises :class:`DivergedError` naming round, client and ``remedy`` for a loss or weight that is not finite."""
    for result in trained:
        if not (math.isfinite(result.loss) and result.finite):
            name = "the server" if result.client == SERVER else federation.clients[result.client].name
            first = "a smaller method.server_distillation.lr" if result.client == SERVER else remedy
            number = round + 1
            raise DivergedError(
                f"diverged in round {number} at {name}: its weights are not finite; {first} would be the first to try",
                round=number,
                client=name,
            )
