"""Sums the cost of all pieces of work and describes it: shared stages, the cost of each kind, and totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from knot_runner.config.strict import by_key
from knot_runner.estimate.pieces import DATA_SETS_KIND, SHARED_ROUNDS, WORKERS, Cost, Costs, Load
from knot_runner.estimate.whole import SweepEstimate
from knot_runner.report.render.text import duration

#: Maximum number of kinds of work with a line of their own.
MAX_LINES = 12
#: name, how many, each, in all, from
Row = tuple[str, str, str, str, str]
GIB = 2**30


def to_do(loads: Iterable[Load]) -> list[Load]:
    """The remaining work of each of ``loads`` when run one after another: shared pieces are done once."""
    made: set[str] = set()
    left = []
    for load in loads:
        left.append(load.less(made))
        made |= {piece.key for piece in load.pieces}
    return left


def in_turn(loads: Iterable[Load], costs: Costs) -> float:
    """Seconds of all ``loads`` run one after another."""
    return sum(load.seconds(costs) for load in to_do(loads))


def at_once(loads: list[Load], costs: Costs, cores: int) -> tuple[float, float]:
    """Seconds (from, to) of all ``loads`` on ``cores`` that are never idle: their work divided by the cores, but at
    least the time of the longest load."""
    pieces = [piece for load in to_do(loads) for piece in load.pieces]
    longest = max((load.seconds(costs) for load in to_do(loads)), default=0.0)
    timed = [(costs[piece.kind], piece) for piece in pieces if piece.kind]
    low, high = (sum(cost.seconds(piece) * cost.busy[end] for cost, piece in timed) / cores for end in (0, 1))
    return max(low, longest), max(high, longest)


def peak_memory(load: Load, costs: Costs) -> int | None:
    """Largest measured memory in bytes of a piece of ``load``; None if none was measured."""
    found = [costs[p.kind].memory for p in load.pieces if p.kind in costs and not p.there]
    return max((size for size in found if size is not None), default=None)


def disk_space(loads: list[Load], costs: Costs) -> int:
    """Measured bytes that all ``loads`` write to disk."""
    pieces = [piece for load in to_do(loads) for piece in load.pieces]
    return sum(costs[piece.kind].disk or 0 for piece in pieces if piece.kind in costs)


# -------------------------------------------------------------------------------------------------------------- words


def shared_lines(loads: Iterable[Load]) -> list[str]:
    """One line per stage that jobs share or that is already cached; work done by single jobs is left out."""
    pieces = [piece for load in loads for piece in load.pieces]
    lines = []
    for stage in dict.fromkeys(piece.stage for piece in pieces if piece.stage != WORKERS):
        own = {piece.key: piece.there for piece in pieces if piece.stage == stage}
        uses, there = sum(piece.stage == stage for piece in pieces), sum(own.values())
        if len(own) == uses and not there:
            continue
        text = f"{len(own)} {_plural(stage, len(own))} in all, {uses} if no job shared"
        if stage == DATA_SETS_KIND:
            text = f"{len(own)} {_plural(stage, len(own))}: read once by the fused launcher, {uses} times by others"
        lines.append(text + (f"; {there} there already, {len(own) - there} to do" if there else ""))
    return lines


def kind_rows(estimate: SweepEstimate) -> list[Row]:
    """Rows on the cost of each kind of work, largest total first."""
    left = [piece for load in to_do(estimate.known) for piece in load.pieces if piece.kind]
    count = Counter(piece.name for piece in left)
    total: dict[str, float] = {}
    source: dict[str, Cost] = {}
    for piece in left:
        cost = source[piece.name] = estimate.costs[piece.kind]
        total[piece.name] = total.get(piece.name, 0.0) + cost.seconds(piece)
    names = sorted(total, key=lambda name: -total[name])
    rows = [_row(name, count[name], total[name], source[name].source) for name in names[:MAX_LINES]]
    if more := names[MAX_LINES:]:
        rows.append(_row(f"{len(more)} others", sum(count[n] for n in more), sum(total[n] for n in more), ""))
    return rows


def _row(name: str, count: int, seconds: float, source: str) -> Row:
    return name, str(count), duration(seconds / count), duration(seconds), source


def total_lines(estimate: SweepEstimate, cores: int, memory: int | None, disk: int) -> list[str]:
    """Lines on the total cost of all jobs with a known cost. ``memory``, ``disk``: free bytes."""
    loads, costs = estimate.known, estimate.costs
    lines = []
    if loads:
        low, high = at_once(loads, costs, cores)
        span = duration(low) if duration(low) == duration(high) else f"{duration(low)} to {duration(high)}"
        which = f"{len(loads)} jobs" if len(loads) > 1 else "the job"
        turn = ", one after another" if len(loads) > 1 else ""
        lines.append(f"{which}{turn}: about {duration(in_turn(loads, costs))}")
        if len(loads) > 1:
            lines.append(f"{cores} cores never idle (joblib, fused): about {span}")
        lines += _memory_lines(loads, estimate, cores, memory) + _disk_lines(loads, estimate, disk)
    lines += _untimed_lines(estimate.untimed)
    missing = len(estimate.loads) - len(loads) + estimate.unplanned
    if missing:
        which = f"{missing} jobs are" if missing > 1 else "1 job is"
        lines.append(f"{which} not in these sums; --seconds=N allows N seconds for timing")
    return lines


def _untimed_lines(untimed: dict[str, str]) -> list[str]:
    """One line per reason why kinds of work were not timed."""
    by_reason = by_key((reason, name) for name, reason in untimed.items())
    return [
        f"not timed: {names[0]}{f' and {len(names) - 1} more kinds of work' * (len(names) > 1)}: {reason}"
        for reason, names in list(by_reason.items())[:MAX_LINES]
    ]


def _memory_lines(loads: list[Load], estimate: SweepEstimate, cores: int, free: int | None) -> list[str]:
    each = max((peak_memory(load, estimate.costs) or 0 for load in loads), default=0)
    if not each:
        return ["memory: not measured (times are from records, or of less than a batch)"]
    many = min(cores, len(loads))
    at_once_note = f", {many} at once at most {size(many * each)}" if many > 1 else ""
    line = f"memory: at most {size(each)} a job{at_once_note}" + (f"; {size(free)} are free" if free else "")
    if free and each > free:
        return [line, "memory: a job would not fit"]
    return [line, f"memory: {free // each} at once would fit, not {many}"] if free and many * each > free else [line]


def _disk_lines(loads: list[Load], estimate: SweepEstimate, free: int) -> list[str]:
    needed = disk_space(loads, estimate.costs)
    if not needed:
        return []
    line = f"disk: about {size(needed)} in all; {size(free)} are free"
    return [line] if needed < free else [line, "disk: the sweep would not fit"]


def size(count: int) -> str:
    """Bytes as MB or GB (powers of 1024)."""
    return f"{count / GIB:.1f} GB" if count >= GIB else f"{max(1, round(count / 2**20))} MB"


def _plural(stage: str, count: int) -> str:
    """``count`` and the name of ``stage``, which is given in the plural."""
    if count != 1:
        return stage
    singular = {"biases": "bias", "distance matrices": "distance matrix", "sets of soft labels": "set of soft labels",
                SHARED_ROUNDS: "training of all clients"}  # fmt: skip
    return singular.get(stage, stage.removesuffix("s"))
