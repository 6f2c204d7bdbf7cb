"""The one loop of all methods: plan, execute, fold, observe, and commit often enough that a kill costs little."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from knot_runner.methods.contract import RoundMethod, State
from knot_runner.pipelines.runs.commits import Commits
from knot_runner.util.files import Facts, LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.personalization.personalized import PersonalModels

#: (round, requests) -> their outcomes, in order
Execute = Callable[[int, list[Any]], list[Any]]
#: (round, state after its fold, requests, outcomes) -> the state after its exchange, and what there is to say of that
ExchangeRound = Callable[[int, State, list[Any], list[Any]], tuple[State, LogRow]]
#: (round, state after it, requests, outcomes) -> what there is to say of the round beyond the method's own words
Observe = Callable[[int, State, list[Any], list[Any]], LogRow]


@dataclass(frozen=True)
class RoundLoop:
    """The inputs of the loop: ``method`` with its settings ``hp`` over ``federation``.

    ``commits``: store of the state; ``stops``: whether to stop early, given the rows so far; ``usable``: whether a
    committed state can be resumed from; ``log``: receives every row.
    """

    method: RoundMethod
    hp: Any
    federation: Any
    commits: Commits
    execute: Execute
    observe: Observe = lambda *_: {}
    #: what follows the fold: the state after it, and what there is to say
    exchange: ExchangeRound = lambda round, state, requests, outcomes: (state, {})
    stops: Callable[[list[LogRow]], bool] = lambda _: False
    usable: Callable[[State], bool] = lambda _: True
    log: Callable[[LogRow], None] = lambda _: None
    #: rounds that take place even where the method asks for nothing, as when no client happens to be drawn
    rounds: int = 0
    #: whether rows hold the seconds of their round; artifacts hold their own
    timed: bool = True


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of all rounds: the deployed method and state, all rows, further facts for the result, and the seconds
    outside rounds; ``personal``: clients' own models after personalization."""

    method: RoundMethod
    state: State
    rows: list[LogRow]
    facts: Facts
    seconds: dict[str, float]
    personal: PersonalModels | None = None


def run_rounds(loop: RoundLoop, start: State | None = None) -> tuple[State, list[LogRow]]:
    """Runs all rounds, resuming from the last commit, until the method plans no request; returns the final state and
    all rows.

    ``start``: the state before round 0, made by the method if None. Raises :class:`DivergedError`.
    """
    method, hp, federation = loop.method, loop.hp, loop.federation
    commit, rows = loop.commits.resume(lambda values, tensors: loop.usable(_joined(values, tensors)))
    if commit.step >= 0:
        state = _joined(commit.values, commit.tensors)
    else:
        state = method.init(hp, federation) if start is None else start
    round = commit.step + 1
    while not loop.stops(rows) and (requests := _planned(loop, state, round)) is not None:
        began = time.monotonic()
        outcomes = loop.execute(round, requests)
        state, folded = method.fold(hp, state, federation, round, requests, outcomes)
        state, exchanged = loop.exchange(round, state, requests, outcomes)
        for name in ("bytes_down", "bytes_up"):
            if name in exchanged:
                exchanged[name] += folded[name]
        row = {"round": round + 1, **folded, **exchanged, **loop.observe(round, state, requests, outcomes)}
        rows.append(row | {"seconds": time.monotonic() - began} if loop.timed else row)
        loop.log(row)
        if loop.commits.due():
            state = _commit(loop.commits, round, state, rows)
        round += 1
    if loop.commits.step < round - 1:
        state = _commit(loop.commits, round - 1, state, rows)
    return state, rows


def _planned(loop: RoundLoop, state: State, round: int) -> list[Any] | None:
    """Returns the requests of ``round``; None when the method has finished."""
    method, known = loop.method, (loop.hp, state, loop.federation, round)
    requests = method.plan(*known)
    if requests or round < loop.rounds:
        return requests
    return None if method.is_finished is None or method.is_finished(*known) else []


def scalars(row: LogRow) -> LogRow:
    """Returns the scalar entries of a row."""
    return {key: value for key, value in row.items() if isinstance(value, int | float)}


def _joined(values: State, tensors: dict[str, Tensor]) -> State:
    return {**values.get("state", {}), **tensors}


def _commit(commits: Commits, round: int, state: State, rows: list[LogRow]) -> State:
    """Commits the state; returns it with the tensors shared between commits memory-mapped."""
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    plain = {name: value for name, value in state.items() if name not in tensors}
    return {**state, **commits.save(round, tensors, rows, {"state": plain} if plain else {})}
