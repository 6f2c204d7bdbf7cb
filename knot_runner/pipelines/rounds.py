"""The round loop of all methods. It runs rounds, logs them, and regularly saves the state."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from knot_runner.engine.commit import Commits
from knot_runner.methods.contract import State
from knot_runner.util.files import LogRow

#: The state after a round and the log row of the round; None if training is finished.
Advanced = tuple[State, LogRow] | None
#: Function that runs a round, given the state, the number of the round (from 0) and the log rows of all earlier rounds.
Advance = Callable[[State, int, list[LogRow]], Advanced]


def run_rounds(
    advance: Advance,
    commits: Commits,
    start: Callable[[], State],
    *,
    log: Callable[[LogRow], None] = lambda row: None,
    usable: Callable[[State], bool] = lambda state: True,
    timed: bool = True,
) -> tuple[State, list[LogRow]]:
    """Resume from the last commit and run the remaining rounds; return the final state and all log rows.

    Args:
        advance: Function that runs one round.
        commits: The saved states of this run or stage.
        start: Function that returns the state before the first round.
        log: Function that receives the log row of each round.
        usable: Function that returns whether the run can resume from a committed state.
        timed: Whether each log row records the duration of its round.

    Raises:
        DivergedError: A loss or weight is not finite.
    """
    commit, rows = commits.resume(lambda values, tensors: usable(_joined(values, tensors)))
    state = start() if commit.step < 0 else _joined(commit.values, commit.tensors)
    round = commit.step + 1
    began = time.monotonic()
    while (advanced := advance(state, round, rows)) is not None:
        state, entries = advanced
        row = {"round": round + 1, **entries}
        rows.append(row | {"seconds": time.monotonic() - began} if timed else row)
        log(row)
        if commits.due():
            state = _commit(commits, round, state, rows)
        round = round + 1
        began = time.monotonic()
    if commits.step < round - 1:
        state = _commit(commits, round - 1, state, rows)
    return state, rows


def scalars(row: LogRow) -> LogRow:
    """Return the scalar entries of a log row."""
    return {key: value for key, value in row.items() if isinstance(value, int | float)}


def _joined(values: State, tensors: dict[str, Tensor]) -> State:
    return {**values.get("state", {}), **tensors}


def _commit(commits: Commits, round: int, state: State, rows: list[LogRow]) -> State:
    """Commit the state; return the state, in which tensors that several commits share are memory-mapped."""
    tensors = {}
    plain = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            tensors[name] = value
        else:
            plain[name] = value
    return {**state, **commits.save(round, tensors, rows, {"state": plain} if plain else {})}
