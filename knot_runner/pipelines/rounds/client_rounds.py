"""Rounds of client training: executed by an engine, checked, evaluated periodically, stopped at a target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from knot_runner.config.settings import FederatedTraining
from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.methods.contract import Method, RoundWork
from knot_runner.methods.federated.server_distillation import SERVER
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.metrics import ACCURACY
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.pipelines.rounds.loop import RoundLoop, scalars
from knot_runner.pipelines.runs.commits import Commits
from knot_runner.util.errors import DivergedError, UserError
from knot_runner.util.files import LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients.setup import Setup

#: (round, state after it, what was done in it, trained, whether to measure) -> the round's row
MeasureRound = Callable[[int, FederatedState, RoundWork, list[Trained], bool], LogRow]
#: (models asked, their answers, requests for further training) -> None
SeeExchange = Callable[[list[Inference], list[Tensor], list[LocalTraining]], None]


def client_rounds(
    context: RunContext, setup: Setup, method: Method, engine: Engine, measure: MeasureRound
) -> RoundLoop:
    """Rounds of local training by the clients of ``setup``, committed in the run's folder.

    ``measure``: makes a round's log row, with metrics every ``training.evaluate_every`` rounds and in the last.
    """
    training, federation = as_kind(context.settings.training, FederatedTraining), setup.federation
    private = federation.privacy
    shown = ""  # the last accuracy
    after: dict[str, Any] = {}  # the exchange after the current round's fold

    def execute(round: int, requests: list[LocalTraining]) -> list[Trained]:
        wrong = next((request for request in requests if not isinstance(request, LocalTraining)), None)
        if wrong is not None:
            raise UserError(f"plan returned a list with {type(wrong).__name__} instead of LocalTraining", "METHODS")
        trained = engine.train(requests) if requests else []
        check_outcomes(round, trained, federation)
        if private is not None:
            private.sums.clear()
        return trained

    def exchange(round: int, state: FederatedState, trained: list[Trained]) -> tuple[FederatedState, LogRow]:
        after.clear()
        return run_exchange(method, context.hp, federation, engine, round, state, trained, see)

    def see(inferences: list[Inference], logits: list[Tensor], distillation: list[LocalTraining]) -> None:
        classes = logits[0].shape[1] if logits else 0
        after.update(inferences=inferences, distillation=distillation, classes=classes)

    def observe(round: int, state: FederatedState, requests: list[LocalTraining], trained: list[Trained]) -> LogRow:
        nonlocal shown
        if private is not None and trained and round < training.rounds:  # a last round of heads alone sends nothing
            from knot_runner.methods.federated.user_privacy import check_sums  # which other runs do not need

            check_sums(private, context.hp.algorithm)
        row = measure(round, state, RoundWork(requests, **after), trained, training.measures(round))
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
        rounds=0 if private is None else training.rounds,
    )  # fmt: skip


def run_exchange(
    method: Method, hp: Any, federation: Federation, engine: Engine, round: int, state: FederatedState,
    trained: list[Trained], see: SeeExchange = lambda *_: None,
) -> tuple[FederatedState, LogRow]:  # fmt: skip
    """Runs the method's :class:`Exchange` after the fold of ``round``, if it has one; returns the new state and its log
    entries. ``see`` receives the exchange's requests. Raises :class:`DivergedError`."""
    steps, private = method.exchange, federation.privacy is not None
    inferences = steps.plan_inference(hp, state, federation, round, trained) if steps and (trained or private) else None
    if inferences is None or not (inferences or private):
        return state, {}
    logits = engine.logits(inferences) if inferences else []
    requests = steps.plan_training(hp, state, federation, round, trained, logits)
    see(inferences, logits, requests)
    distilled = engine.train(requests) if requests else []
    check_outcomes(round, distilled, federation)
    return steps.fold(hp, state, federation, round, trained, logits, distilled)


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
