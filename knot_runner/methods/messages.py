"""Conversion of federated methods to :class:`RoundMethod`, and the exchange of second messages after aggregation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from knot_runner.config.settings.methods.federated import AveragingSettings, FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, Engine, Inference, LocalTraining, Trained
from knot_runner.methods.contract import (
    SERVER,
    ClientMessage,
    ClientWork,
    FoldFunction,
    MessageFunction,
    Method,
    PlanFunction,
    RoundMethod,
    Sent,
    size,
)
from knot_runner.methods.federated.averaging import fold_round, mean_of
from knot_runner.methods.federation import FederatedState, Federation, RoundOutcome, RoundRow
from knot_runner.util.errors import DivergedError


@dataclass(frozen=True)
class Answers:
    """The second messages of a round (see :class:`Exchange`): either the mean of the messages, or every message.

    Attributes:
        mean: The mean of the messages; {} if the method reads each message.
        each: The messages; [] if the method reads only the mean.
        share: The fraction of clients that took part; with Poisson sampling, the sampling rate.
        students: The participants' models, by client number. ``plan`` can train them on the messages.
    """

    mean: ClientMessage
    each: list[Sent]
    share: float
    students: dict[int, ClientModel]


@dataclass(frozen=True)
class Exchange:
    """The exchange of second messages after the server step of a round.

    A second message is computed from outputs of a client's trained model. The server or the clients then train on the
    second messages.

    Attributes:
        ask: ``(config, federation, round, client, model) -> inferences``: inference requests for the client's trained
            model; [] in rounds without second messages.
        answer: ``(config, federation, client, outputs) -> message``: the client's second message. ``outputs`` are the
            logits or features that the inference requests return.
        plan: ``(config, state, federation, round, answers) -> requests``: requests for training on the second messages;
            [] if nothing is trained.
        fold: ``(config, state, federation, round, answers, distilled) -> (state, row)``: the state and the log entries
            after the training that ``plan`` requests. ``distilled`` holds the result of each request.
        reads: ``mean`` if ``plan`` and ``fold`` need the mean of the messages, ``each`` if they need every message, and
            ``either`` if they support both.
        answered_by: ``clients`` if each client computes and sends its second message; ``server`` if the server
            computes all second messages with the clients' models.
    """

    ask: Callable[..., list[Inference]]
    answer: MessageFunction
    plan: PlanFunction
    fold: FoldFunction
    reads: Literal["mean", "each", "either"] = "either"
    answered_by: Literal["server", "clients"] = "server"


def in_rounds(method: Method, config: FederatedSettings) -> RoundMethod:
    """Convert ``method`` to a :class:`RoundMethod`. ``config``: the settings of the method."""
    if isinstance(config, AveragingSettings):
        method = keeping_unshared(method, config)
    fold = partial(fold_round, method)
    if method.exchange is not None:
        fold = partial(fold_and_exchange, method, method.exchange(config))
    return RoundMethod(method.init, method.plan, fold, method.deployed, method.one_model, facts=method.facts)


def keeping_unshared(method: Method, config: FederatedSettings) -> Method:
    """Return ``method``, changed so that each client keeps its own values of parameters that are not shared.

    With ``batchnorm=local``, each client also keeps its running statistics.
    """
    if config.patterns == ("*",) and config.batchnorm != "local":
        return method

    def keep(
        config: FederatedSettings, state: FederatedState, federation: Federation, work: ClientWork
    ) -> ClientMessage:
        kept = method.keep(config, state, federation, work)
        trained = work.trained[0]
        if config.patterns != ("*",):
            kept = kept | {"unshared": trained.weights[~federation.layout.matching(config.patterns)]}
        if config.batchnorm == "local":
            kept = kept | {"statistics": trained.buffers}
        return kept

    return replace(method, keep=keep)


def is_over(method: RoundMethod, config: Any, state: FederatedState, federation: Federation, round: int) -> bool:
    """Return whether training is over. Call this function only if ``method`` has no requests for ``round``.

    With Poisson sampling, a round has no requests if no client was drawn. Training then continues.
    """
    if federation.sampling == "poisson" and round < federation.training.rounds:
        return False
    return method.is_finished is None or method.is_finished(config, state, federation, round)


def fold_and_exchange(
    method: Method, exchange: Exchange, config: FederatedSettings, state: FederatedState, federation: Federation,
    round: int, requests: list[LocalTraining], trained: list[Trained], engine: Engine,
) -> RoundOutcome:  # fmt: skip
    """Run the server step of ``round`` and the exchange of second messages.

    Returns:
        The state, the log entries, and the requests of the exchange. The logged byte counts include
        the messages of the exchange.
    """
    state, row, _ = fold_round(method, config, state, federation, round, requests, trained, engine)
    works = ClientWork.of_round(round, requests, trained)
    state, exchanged, further = run_exchange(method, exchange, config, state, federation, round, works, engine)
    sums = {name: row[name] + exchanged.get(name, 0) for name in ("bytes_down", "bytes_up")}
    return state, {**row, **exchanged, **sums}, further


def check_outcomes(
    round: int,
    trained: list[Trained],
    federation: Federation,
    remedy: str = "a smaller training.lr, or a higher method.temperature",
) -> None:
    """Raise :class:`DivergedError` if a loss or a model weight is not finite.

    The error message names the round and the client, and suggests ``remedy``.
    """
    number = round + 1
    for result in trained:
        if math.isfinite(result.loss) and result.finite:
            continue
        name = "the server"
        if result.client == SERVER:
            remedy = "a smaller method.server_distillation.lr"
        else:
            name = federation.clients[result.client].name
        problem = f"diverged in round {number} at {name}: its loss or weights are not finite. First try {remedy}"
        raise DivergedError(problem, round=number, client=name)


def run_exchange(
    method: Method, exchange: Exchange, config: FederatedSettings, state: FederatedState, federation: Federation,
    round: int, works: list[ClientWork], engine: Engine,
) -> RoundOutcome:  # fmt: skip
    """Run ``exchange`` after the server step; return the state, the log entries, and the exchange's requests."""
    models = {work.client: work.trained[0].model for work in works}
    asked = {client: exchange.ask(config, federation, round, client, model) for client, model in models.items()}
    inferences = [inference for requested in asked.values() for inference in requested]
    logits = iter(engine.logits(inferences) if inferences else [])
    answers = {client: [next(logits) for _ in requested] for client, requested in asked.items() if requested}
    up = 0

    def sent() -> Iterator[Sent]:
        nonlocal up
        for client, outputs in answers.items():
            parts = exchange.answer(config, federation, client, outputs)
            message = method.send(Sent(client, federation.clients[client].size, parts), 2)
            up += message.bytes if exchange.answered_by == "clients" else 0
            yield message

    mean: ClientMessage = {}
    each: list[Sent] = []
    row: RoundRow = {}
    if exchange.reads != "mean":
        each = list(sent())
    elif method.reduce is None:
        mean = mean_of(sent(), config.aggregation)
    else:
        mean, row = method.reduce(round, 2, sent(), partial(empty_answer, exchange, config, federation, round))
    if not each and not mean:
        return state, row, []
    replies = Answers(mean, each, federation.share(len(models)), models)
    distillation = exchange.plan(config, state, federation, round, replies)
    distilled = engine.train(distillation) if distillation else []
    check_outcomes(round, distilled, federation)
    state, entries = exchange.fold(config, state, federation, round, replies, distilled)
    down = 0
    for request in distillation if exchange.answered_by == "clients" else []:
        # outputs of other clients, one forward pass per example
        received = {name: inputs[:1] for name, inputs in request.inputs.items() if name != str(request.client)}
        down += len(request.rows.unique()) * size(received)
    return state, {**entries, **row, "bytes_up": up, "bytes_down": down}, [*inferences, *distillation]


def empty_answer(exchange: Exchange, config: FederatedSettings, federation: Federation, round: int) -> ClientMessage:
    """Return the second message of a client whose outputs are all 0.

    The result has the same tensor names and shapes as the clients' second messages of ``round``. In rounds without
    second messages, the result is {}.
    """
    client = federation.numbers[0]
    widths = {"logits": len(federation.labels.names), "features": federation.layout.features}
    asked = exchange.ask(config, federation, round, client, federation.start_of(client))
    zeros = [federation.model.weights.new_zeros(len(inference.rows), widths[inference.output]) for inference in asked]
    return exchange.answer(config, federation, client, zeros) if asked else {}
