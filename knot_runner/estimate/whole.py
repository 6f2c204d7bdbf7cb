"""Estimates all jobs of a command: their pieces, and the cost of each kind from finished runs or timing in a budget."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.strict import by_key, digest
from knot_runner.estimate.child import Seen, Tell, watch
from knot_runner.estimate.pieces import (
    DATA_SETS_KIND,
    EVALUATION,
    SHARED_ROUNDS,
    TEACHER,
    TRAININGS,
    WORKERS,
    Cost,
    Load,
    Piece,
    has_stages,
    in_family,
    load_of,
)
from knot_runner.estimate.recorded import recorded_costs
from knot_runner.estimate.timed import time_piece
from knot_runner.util.errors import UserError
from knot_runner.util.processes import cores

#: Seconds below which timing is useless.
MIN_SECONDS = 2.0
#: Seconds by which a kind may exceed its share of the time before it is given up, while time remains.
_GRACE_SECONDS = 2.0
#: Fraction of its share that a process timing stages uses, since its last step may be slow.
TEXTS_SHARE = 0.95


@dataclass
class SweepEstimate:
    """The estimate: ``loads`` of the jobs to do, and ``costs`` by kind.

    ``untimed``: name of a kind -> why its cost is unknown; ``problems``: errors that would stop a run of the sweep;
    ``unplanned``: number of jobs in stages whose pieces are unknown.
    """

    loads: list[Load] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    untimed: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unplanned: int = 0

    @property
    def known(self) -> list[Load]:
        """The loads with a known cost for every piece."""
        return [load for load in self.loads if load.known(self.costs)]

    def stops(self, problem: str) -> None:
        """Note an error that would stop a run of the sweep."""
        if problem not in self.problems:
            self.problems.append(problem)


def plain_loads(jobs: list[ComposedJob]) -> list[Load]:
    """The pieces of the jobs without stages: nothing is read or timed."""
    return [load_of(job) for job in jobs if not has_stages(job)]


def estimate_sweep(jobs: list[ComposedJob], done: list[ComposedJob], seconds: float) -> SweepEstimate:
    """Estimate the cost of ``jobs`` (all different, to do); ``done``: jobs with results.

    Spends at most about ``seconds`` on timing, in child processes; ``paths.out`` is only read.
    """
    began, made = time.monotonic(), SweepEstimate()
    recorded = recorded_costs([*jobs, *done], cores())
    plain = [job for job in jobs if not has_stages(job)]
    made.loads = with_what_is_there(plain_loads(jobs), plain_loads(done))
    questions = _questions(plain, made.loads)
    made.costs = {kind: recorded[kind] for kind in questions if kind in recorded}
    untimed = [questions[kind] for kind in questions if kind not in recorded]
    families = _families(jobs)
    rest = len(untimed) + len(families)
    for piece, job in untimed:
        _ask(made, piece, job, began + seconds - time.monotonic(), rest)
        rest -= 1
    for family in families:
        _ask_family(made, family, recorded, began + seconds - time.monotonic(), rest)
        rest -= 1
    return made


def with_what_is_there(loads: list[Load], done: list[Load]) -> list[Load]:
    """``loads`` with pieces marked as done that finished runs share: distances, clusterings, and rounds of variants."""
    left = [piece for load in done for piece in load.pieces if piece.step == 0 or piece.stage == SHARED_ROUNDS]
    there = {piece.key for piece in left if piece.stage != DATA_SETS_KIND}
    return [
        dataclasses.replace(load, pieces=tuple(dataclasses.replace(p, there=p.key in there) for p in load.pieces))
        for load in loads
    ]


def _questions(jobs: list[ComposedJob], loads: list[Load]) -> dict[str, tuple[Piece, ComposedJob]]:
    """Each kind to time -> (a piece, its job); kinds that most jobs need come first."""
    found: dict[str, tuple[Piece, ComposedJob]] = {}
    count: Counter[str] = Counter()
    for job, load in zip(jobs, loads, strict=True):
        for piece in (piece for piece in load.pieces if piece.kind and not piece.there):
            count[piece.kind] += 1
            found.setdefault(piece.kind, (piece, job))
    return dict(sorted(found.items(), key=lambda item: -count[item[0]]))


def _ask(made: SweepEstimate, piece: Piece, job: ComposedJob, left: float, rest: int) -> None:
    """Time one of the ``rest`` remaining kinds, for which ``left`` seconds remain."""
    if left < MIN_SECONDS:
        made.untimed[piece.name] = "no time was left"
        return
    try:
        answer = time_piece(job, piece.stage, left / rest, min(left, _GRACE_SECONDS * left / rest))
    except UserError as problem:
        made.stops(str(problem))
        answer = "it would stop at once"
    if isinstance(answer, str):
        made.untimed[piece.name] = answer
    else:
        made.costs[piece.kind] = answer


# ------------------------------------------------------------------------------------------------------------ stages


def _families(jobs: list[ComposedJob]) -> list[list[ComposedJob]]:
    """Jobs in stages, grouped by equal data and networks."""
    found = by_key(
        (digest([in_family(job.config, ""), job.config["paths"]["data"], job.config.get("plugins")]), job)
        for job in jobs
        if has_stages(job)
    )
    return list(found.values())


def _ask_family(
    made: SweepEstimate, jobs: list[ComposedJob], recorded: dict[str, Cost], left: float, rest: int
) -> None:
    """Plan the jobs of one family and time kinds without a recorded cost, in one child process."""
    task, prefix = jobs[0].settings.task.name, in_family(jobs[0].config, "")
    if left < MIN_SECONDS:
        made.untimed[f"{task} data"] = "no time was left"
        made.unplanned += len(jobs)
        return
    known = {kind.removeprefix(prefix): cost for kind, cost in recorded.items() if kind.startswith(prefix)}
    most, until = min(left, _GRACE_SECONDS * left / rest), time.monotonic() + TEXTS_SHARE * left / rest
    seen = watch(_plan_and_time, ([job.config for job in jobs], set(known), until), most)
    if seen.problem:
        made.stops(seen.problem)
    workers = jobs[0].settings.hardware.workers or cores()
    made.costs |= {f"{prefix}{kind}": cost for kind, cost in {**_costs(seen, workers), **known}.items()}
    loads = [
        Load(tuple(_of_family(piece, prefix, task) for piece in pieces), workers)
        for _, _, pieces in seen.starting_with("pieces")
    ]
    made.loads += loads
    made.unplanned += len(jobs) - len(loads)
    for piece in (piece for load in loads for piece in load.pieces):
        if not piece.there and piece.kind is not None and piece.kind not in made.costs:
            made.untimed[piece.name] = seen.broken or "no time was left"
    # it comes last and costs least: if all else is known, the totals omit it and say so
    made.costs.setdefault(f"{prefix}{EVALUATION}", Cost(0.0, 0.0, source="not timed"))
    if len(loads) < len(jobs):
        made.untimed[f"{task} data"] = seen.broken or seen.problem or f"they were not read in {most:.0f} s"


def _costs(seen: Seen, workers: int) -> dict[str, Cost]:
    """The reported costs. Teachers train in worker processes, each about as large as the timed one."""
    found: dict[str, Cost] = {}
    for ready, *_ in seen.starting_with("ready"):
        found[WORKERS] = Cost(0.0, ready - seen.began if workers > 1 else 0.0)
    memory = seen.memory if seen.starting_with("full batches") else None
    model = max((size for _, _, size in seen.starting_with("model")), default=None)
    for _, _, kind, cost in seen.starting_with("cost"):
        processes = 1 + workers if kind.startswith(TEACHER) and workers > 1 else 1
        disk = model if kind.startswith(TRAININGS) else None
        found[kind] = dataclasses.replace(cost, memory=memory and memory * processes, disk=disk)
    return found


def _plan_and_time(tell: Tell, folder: Path, configs: list[dict[str, Any]], known: set[str], until: float) -> None:
    from knot_runner.estimate.stage_times import plan_and_time  # imports torch: only in the child process

    plan_and_time(tell, folder, [job_of(config) for config in configs], known, until)


def _of_family(piece: Piece, prefix: str, task: str) -> Piece:
    """``piece`` with ``task`` in its name and ``prefix`` in its kind, if it has one."""
    kind = None if piece.kind is None else f"{prefix}{piece.kind}"
    return dataclasses.replace(piece, kind=kind, name=f"{task} {piece.name}")
