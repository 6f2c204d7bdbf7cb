"""The way of messages: a client's work becomes what it sends, the server folds their mean, or each, and clients keep
their own. Here a :class:`Method` becomes what the loop of rounds carries out.

Messages are made and summed one after another, in the order of the clients, so that a round of a thousand clients holds
one sum, and bits do not depend on workers.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from knot_runner.config.settings import AveragingSettings, FederatedSettings
from knot_runner.engine.federated.cohort import Engine, LocalTraining, Trained
from knot_runner.methods.contract import (
    Answers,
    ClientMessage,
    ClientWork,
    Exchange,
    FurtherWork,
    Gathering,
    Method,
    RoundMethod,
    Sent,
    size,
)
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow

#: Values of a message that are summed at a time, in float64, and messages that are summed together: a block stays in a
#: core's cache, and needs no fresh pages.
SUMMED_AT_ONCE, MESSAGES_AT_ONCE = 2**15, 8
#: Names of a state that are not sent to clients begin with these.
NOT_SENT = ("client/", "server/", "fleet/")


def in_rounds(method: Method, config: FederatedSettings) -> RoundMethod:
    """Returns ``method`` as the loop of rounds carries it out, for its settings ``config``."""
    exchange = None if method.exchange is None else method.exchange(config)
    after = None if exchange is None else functools.partial(run_exchange, method, exchange)
    return RoundMethod(
        method.init,
        method.arriving or method.plan,
        functools.partial(fold_round, method),
        method.deployed,
        method.one_model,
        after,
        method.is_finished,
        method.facts,
    )


def is_over(method: RoundMethod, config: Any, state: FederatedState, federation: Federation, round: int) -> bool:
    """Return whether training ends before ``round``, which has no requests: Poisson sampling may draw nobody."""
    if federation.sampling == "poisson" and round < federation.training.rounds:
        return False
    return method.is_finished is None or method.is_finished(config, state, federation, round)


def fold_and_exchange(
    method: RoundMethod, config: Any, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained], engine: Engine,
) -> tuple[FederatedState, RoundRow, FurtherWork]:  # fmt: skip
    """Return the state after the fold of ``round`` and what follows it, the log entries of both, with all bytes, and
    the work that followed."""
    state, row = method.fold(config, state, federation, round, requests, trained)
    if method.exchange is None:
        return state, row, FurtherWork()
    state, exchanged, further = method.exchange(config, state, federation, round, requests, trained, engine)
    sums = {name: row[name] + exchanged.get(name, 0) for name in ("bytes_down", "bytes_up")}
    return state, {**row, **exchanged, **sums}, further


def client_works(round: int, requests: list[LocalTraining], trained: list[Trained]) -> list[ClientWork]:
    """Returns the work of each client of ``round``, in the order of their first ``requests``."""
    works: dict[int, ClientWork] = {}
    for request, result in zip(requests, trained, strict=True):
        work = works.setdefault(request.client, ClientWork(round, [], []))
        work.requests.append(request)
        work.trained.append(result)
    return list(works.values())


def fold_round(
    method: Method, config: FederatedSettings, state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Returns the state after the messages of ``round`` are folded, and its log entries, with the ``bytes_down`` and
    ``bytes_up`` of all its clients."""
    works = client_works(round, requests, trained)
    client_state: FederatedState = {}
    row: RoundRow = {}
    down = up = 0
    after: FederatedState = state

    def sent() -> Iterator[Sent]:
        nonlocal down, up
        for work in works:
            begun = as_begun(state, work.begun, round)
            parts = {} if method.message is None else method.message(config, begun, federation, work)
            message = method.send(Sent(work.client, work.examples, parts), 1)
            down += size((method.received or received)(config, begun, federation, work.client))
            up += message.bytes
            kept = personal_parts(config, federation, work)
            if method.own is not None:
                kept |= method.own(config, begun, federation, work)
            if method.keep is not None:
                kept |= method.keep(config, begun, federation, work.client, message.parts)
            client_state.update({f"client/{work.client}/{name}": tensor for name, tensor in kept.items()})
            yield message

    share = federation.share(len(works))
    if method.fold_each is not None:
        messages = list(sent())
        if messages:
            after, entries = method.fold_each(config, state, federation, round, messages)
            row |= entries
    else:
        empty = functools.partial(empty_message, method, config, state, federation, round)
        gathering = Gathering(round, 1, sent(), empty, config.aggregation, method.unweighted)
        mean, entries = (method.reduce or mean_of)(gathering)
        row |= entries
        if mean and method.fold is not None:
            after, entries = method.fold(config, state, federation, round, mean, share)
            row |= entries
    if works:
        row |= method.observe(works)
    row |= {"bytes_down": down, "bytes_up": up}
    after = {**after, **client_state}
    if method.pass_time is not None:
        after, entries = method.pass_time(config, state, after, federation, round)
        row |= entries
    return after, row


def mean_of(gathering: Gathering) -> tuple[ClientMessage, RoundRow]:
    """Returns sum_k p_k m_k of the messages, part by part, {} of none: by examples (p_k = n_k / n) or uniform."""
    sums: ClientMessage = {}
    weights: dict[str, float] = {}
    messages = iter(gathering.sent)
    while some := list(islice(messages, MESSAGES_AT_ONCE)):
        for name, first in some[0].parts.items():
            plain = gathering.aggregation == "uniform" or name in gathering.unweighted
            pairs = [(1.0 if plain else float(one.examples), one.parts[name].reshape(-1)) for one in some]
            add_all(sums.setdefault(name, torch.zeros(first.shape, dtype=torch.float64)).view(-1), pairs)
            weights[name] = weights.get(name, 0.0) + sum(weight for weight, _ in pairs)
    return {name: total / weights[name] for name, total in sums.items()}, {}


def add_all(total: Tensor, pairs: list[tuple[float, Tensor]]) -> None:
    """Add each vector [n] times its weight to ``total`` [n], float64, in place and in the order given."""
    for start in range(0, len(total), SUMMED_AT_ONCE):
        block = slice(start, start + SUMMED_AT_ONCE)
        for weight, vector in pairs:
            total[block].add_(vector[block].double(), alpha=weight)


def shared_of(config: FederatedSettings, federation: Federation) -> Tensor | None:
    """bool [P]: the parameters that clients share, by ``method.shared``; None: all of them."""
    if not isinstance(config, AveragingSettings):
        return None
    patterns = tuple(config.shared or config.travels)
    return None if patterns == ("*",) else federation.layout.matching(patterns)


def received(config: FederatedSettings, state: FederatedState, federation: Federation, client: int) -> ClientMessage:
    """The shared parameters of the global model, and its running statistics where clients send theirs."""
    if "weights" not in state:
        return {}
    shared = shared_of(config, federation)
    parts = {"weights": state["weights"] if shared is None else state["weights"][shared]}
    return parts if config.batchnorm == "frozen" else parts | {"statistics": state["buffers"]}


def personal_parts(config: FederatedSettings, federation: Federation, work: ClientWork) -> ClientMessage:
    """What a client keeps of the model that it trained: the parameters that it does not share, and its running
    statistics with ``batchnorm=local``."""
    kept: ClientMessage = {}
    if config.averages and (shared := shared_of(config, federation)) is not None:
        kept["unshared"] = work.trained[0].weights[~shared]
    if config.averages and config.batchnorm == "local":
        kept["statistics"] = work.trained[0].buffers
    return kept


def empty_message(
    method: Method, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
) -> ClientMessage:
    """Returns the message of a client that has trained nothing: the shapes of what clients send in ``round``."""
    alone = with_chosen(federation, [federation.numbers[0]])
    requests = method.plan(config, state, alone, round)
    if not requests or method.message is None:
        return {}
    results = [Trained(one.client, one.start.weights, one.start.buffers, 1, 0.0, 0, 0, True) for one in requests]
    work, *_ = client_works(round, requests, results)  # of all clients, where all train
    return method.message(config, state, alone, work)


def with_chosen(federation: Federation, clients: list[int]) -> Federation:
    """``federation`` with ``clients`` as those who take part in a round."""
    return dataclasses.replace(federation, chosen=tuple(clients))


def run_exchange(
    method: Method, exchange: Exchange, config: FederatedSettings, state: FederatedState, federation: Federation,
    round: int, requests: list[LocalTraining], trained: list[Trained], engine: Engine,
) -> tuple[FederatedState, RoundRow, FurtherWork]:  # fmt: skip
    """Runs ``exchange`` after the fold of ``round``; returns the state, the log entries, and the work it took."""
    models = {work.client: work.trained[0].model for work in client_works(round, requests, trained)}
    asked = {client: exchange.ask(config, federation, round, client, model) for client, model in models.items()}
    inferences = [inference for requested in asked.values() for inference in requested]
    logits = iter(engine.logits(inferences) if inferences else [])
    answers = {client: [next(logits) for _ in requested] for client, requested in asked.items() if requested}
    up = 0

    def sent() -> Iterator[Sent]:
        nonlocal up
        for client, outputs in answers.items():
            model = models[client] if exchange.answered_by == "server" else None
            parts = exchange.answer(config, federation, client, outputs)
            message = method.send(Sent(client, federation.clients[client].size, parts, model=model), 2)
            up += message.bytes if exchange.answered_by == "clients" else 0
            yield message

    row: RoundRow = {}
    mean: ClientMessage = {}
    each: list[Sent] = []
    empty = functools.partial(empty_answer, exchange, config, federation, round)
    if exchange.reads == "each" or (exchange.reads == "either" and method.reduce is None):
        each = list(sent())
    else:
        mean, row = (method.reduce or mean_of)(Gathering(round, 2, sent(), empty, config.aggregation))
    if not each and not mean:
        return state, row, FurtherWork()
    share = federation.share(len(models))
    told = Answers(mean, each, share, models if exchange.answered_by == "clients" else {})
    distillation = exchange.plan(config, state, federation, round, told)
    distilled = engine.train(distillation) if distillation else []
    state, entries = exchange.fold(config, state, federation, round, told, distilled)
    costs = {"bytes_up": up, "bytes_down": sum(_told_bytes(one) for one in distillation if told.students)}
    return state, {**entries, **row, **costs}, FurtherWork(inferences, distillation)


def empty_answer(exchange: Exchange, config: FederatedSettings, federation: Federation, round: int) -> ClientMessage:
    """Returns the second message of a client whose logits, or features, are 0, {} in rounds without: its shapes."""
    client = federation.numbers[0]
    widths = {"logits": len(federation.labels.names), "features": federation.layout.features}
    asked = exchange.ask(config, federation, round, client, federation.start_of(client))
    zeros = [federation.model.weights.new_zeros(len(one.rows), widths[one.output]) for one in asked]
    return exchange.answer(config, federation, client, zeros) if asked else {}


def _told_bytes(request: LocalTraining) -> int:
    """Returns the bytes that a client which distills receives of others, for each example once."""
    received = [inputs for name, inputs in request.inputs.items() if name != str(request.client)]
    return len(request.rows.unique()) * sum(size({"": inputs[:1]}) for inputs in received)


def as_begun(state: FederatedState, version: int, round: int) -> FederatedState:
    """``state`` before the fold of ``round`` with what clients are sent as it was before that of ``version``
    (``fleet/sent/<version>/<name>``); what clients keep does not change while they train."""
    if version == round:
        return state
    prefix = f"fleet/sent/{version}/"
    then = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {name: tensor for name, tensor in state.items() if name.startswith(NOT_SENT)} | then


def version_entries(state: FederatedState, version: int, round: int) -> FederatedState:
    """The entries that keep ``version`` for those who go on training from it; ``state``: before the fold of
    ``round``."""
    prefix = f"fleet/sent/{version}/"
    if version == round:  # copies, since commits hold no tensor under two names
        held = {name: tensor for name, tensor in state.items() if not name.startswith(NOT_SENT)}
        return {f"{prefix}{name}": tensor.clone() for name, tensor in held.items()}
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
