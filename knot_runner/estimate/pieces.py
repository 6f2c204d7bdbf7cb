"""Jobs as pieces of work, some of which they share, and the arithmetic of what all of them take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class Piece:
    """One piece of a job's work.

    ``stage``: what it is called where jobs share it; ``name``: what it is called where it is timed; ``key``: pieces
    of one key are done once for all jobs; ``kind``: pieces of one kind take alike, ``units`` times over (rounds,
    epochs; no kind: hardly any time); ``step``: pieces of one step of a job run side by side; ``there``: it has been
    done before.
    """

    stage: str
    name: str
    key: str
    kind: str | None
    units: float = 1.0
    step: int = 0
    there: bool = False


@dataclass(frozen=True)
class Cost:
    """What pieces of one kind take: seconds ``start`` and for each ``unit``, and the cores ``busy`` (from, to).

    ``memory``: most bytes of all processes, None where it was not measured; ``disk``: bytes a piece, None likewise;
    ``source``: how this is known.
    """

    start: float
    unit: float
    busy: tuple[float, float] = (1.0, 1.0)
    memory: int | None = None
    disk: int | None = None
    source: str = "timed"

    def seconds(self, piece: Piece) -> float:
        """What ``piece`` takes on its own."""
        return self.start + self.unit * piece.units


Costs = Mapping[str, Cost]


@dataclass(frozen=True)
class Load:
    """The work of one job, in order; ``workers``: processes that share the pieces of a step."""

    pieces: tuple[Piece, ...]
    workers: int = 1

    def less(self, made: set[str]) -> Load:
        """What is left of it when the pieces of the keys in ``made``, and those that are there, need not be done."""
        return Load(tuple(p for p in self.pieces if not p.there and p.key not in made and p.kind), self.workers)

    def known(self, costs: Costs) -> bool:
        """Whether the cost of every piece is known."""
        return all(piece.there or piece.kind is None or piece.kind in costs for piece in self.pieces)

    def seconds(self, costs: Costs) -> float:
        """Wall time: step by step, the pieces of a step dealt out to the workers."""
        total = 0.0
        for _, step in groupby(self.pieces, key=lambda piece: piece.step):
            each = [costs[piece.kind].seconds(piece) for piece in step if piece.kind]
            total += max([sum(each) / self.workers, *each]) if each else 0.0
        return total


def to_do(loads: Iterable[Load]) -> list[Load]:
    """What each of ``loads`` has left to do when they are done one after another: what they share is done once."""
    made: set[str] = set()
    left = []
    for load in loads:
        left.append(load.less(made))
        made |= {piece.key for piece in load.pieces}
    return left


def in_turn(loads: Iterable[Load], costs: Costs) -> float:
    """Seconds of all ``loads``, one after another."""
    return sum(load.seconds(costs) for load in to_do(loads))


def at_once(loads: list[Load], costs: Costs, cores: int) -> tuple[float, float]:
    """Seconds (from, to) of all ``loads`` on ``cores`` that are never idle: their work divided by the cores, and no
    less than the longest of them takes by itself."""
    pieces = [piece for load in to_do(loads) for piece in load.pieces]
    longest = max((load.seconds(costs) for load in to_do(loads)), default=0.0)
    low, high = (
        sum(costs[piece.kind].seconds(piece) * costs[piece.kind].busy[end] for piece in pieces if piece.kind) / cores
        for end in (0, 1)
    )
    return max(low, longest), max(high, longest)


def peak_memory(load: Load, costs: Costs) -> int | None:
    """Bytes, as far as they were measured, of the hungriest piece of ``load``."""
    found = [costs[p.kind].memory for p in load.pieces if p.kind in costs and not p.there]
    return max((size for size in found if size is not None), default=None)


def disk_space(loads: list[Load], costs: Costs) -> int:
    """Bytes that all ``loads`` write, as far as they were measured."""
    pieces = [piece for load in to_do(loads) for piece in load.pieces]
    return sum(costs[piece.kind].disk or 0 for piece in pieces if piece.kind in costs)
