"""All jobs of a command: their pieces, and what each kind takes, from finished runs or timed within a budget."""

from __future__ import annotations

import dataclasses
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from knot_runner.compose.job import ComposedJob
from knot_runner.estimate import kinds
from knot_runner.estimate.child import Seen, Tell, watch
from knot_runner.estimate.pieces import Cost, Load, Piece
from knot_runner.estimate.recorded import in_family, recorded_costs
from knot_runner.estimate.timed import time_piece
from knot_runner.util.errors import UserError

#: Less time than this shows nothing.
MIN_SECONDS = 2.0
#: How much more than its share of the time a kind may take before it is given up, as long as there is any.
_GRACE_SECONDS = 2.0
#: What of its share a process on texts plans with: the last step it looks at may be slow.
PLANNING_SHARE = 0.85


@dataclass
class SweepEstimate:
    """What is known: the ``loads`` of the jobs to do, and ``costs`` of kinds.

    ``untimed``: name of a kind -> why its cost is not known; ``problems``: what a run of the sweep would stop at;
    ``unplanned``: jobs on texts whose pieces are not known; ``seconds``: spent on timing.
    """

    loads: list[Load] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    untimed: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unplanned: int = 0
    seconds: float = 0.0

    @property
    def known(self) -> list[Load]:
        """The loads whose every piece has a cost."""
        return [load for load in self.loads if load.known(self.costs)]


@dataclass(frozen=True)
class _Question:
    """A kind of pieces whose cost is asked for, with a job that has one."""

    kind: str
    name: str
    stage: str
    job: ComposedJob


def plain_loads(jobs: list[ComposedJob]) -> list[Load]:
    """The pieces of the jobs that are not on texts: nothing is read or timed."""
    return [kinds.load_of(job) for job in jobs if not kinds.on_texts(job)]


def estimate_sweep(jobs: list[ComposedJob], done: list[ComposedJob], seconds: float) -> SweepEstimate:
    """What ``jobs`` (all different, to do) will take; ``done``: jobs whose results are there.

    At most about ``seconds`` are spent on timing, in processes apart; ``paths.out`` is only read.
    """
    began = time.monotonic()
    deadline, made = began + seconds, SweepEstimate()
    recorded = recorded_costs([*jobs, *done], os.cpu_count() or 1)
    families: dict[str, list[ComposedJob]] = {}
    for job in jobs:
        if kinds.on_texts(job):
            families.setdefault(kinds.family(job.config), []).append(job)
    plain = [job for job in jobs if not kinds.on_texts(job)]
    made.loads = _with_what_is_there([kinds.load_of(job) for job in plain], done)
    questions = _questions(plain, made.loads)
    made.costs |= {kind: recorded[kind] for kind in questions if kind in recorded}
    open_questions = [question for kind, question in questions.items() if kind not in recorded]
    rest = len(open_questions) + len(families)
    for question in open_questions:
        _ask(made, question, deadline, rest)
        rest -= 1
    for family in families.values():
        _ask_family(made, family, recorded, deadline, rest)
        rest -= 1
    made.seconds = time.monotonic() - began
    return made


def _with_what_is_there(loads: list[Load], done: list[ComposedJob]) -> list[Load]:
    """What a finished run has left for others: its distances and clusterings."""
    there = {
        piece.key for job in done if not kinds.on_texts(job) for piece in kinds.load_of(job).pieces if piece.step == 0
    }
    return [
        dataclasses.replace(
            load,
            pieces=tuple(
                dataclasses.replace(p, there=p.key in there and p.stage != kinds.DATA_SETS_KIND) for p in load.pieces
            ),
        )
        for load in loads
    ]


def _questions(jobs: list[ComposedJob], loads: list[Load]) -> dict[str, _Question]:
    """Every kind once, those that most jobs wait for first."""
    found: dict[str, _Question] = {}
    count: dict[str, int] = {}
    for job, load in zip(jobs, loads, strict=True):
        for piece in load.pieces:
            if piece.kind and not piece.there:
                count[piece.kind] = count.get(piece.kind, 0) + 1
                found.setdefault(piece.kind, _Question(piece.kind, piece.name, piece.stage, job))
    return dict(sorted(found.items(), key=lambda item: -count[item[0]]))


def _ask(made: SweepEstimate, question: _Question, deadline: float, rest: int) -> None:
    left = deadline - time.monotonic()
    if left < MIN_SECONDS:
        made.untimed[question.name] = "no time was left"
        return
    try:
        answer = time_piece(question.job, question.stage, left / rest, _most(left, rest))
    except UserError as problem:
        _problem(made, str(problem))
        answer = "it would stop at once"
    if isinstance(answer, str):
        made.untimed[question.name] = answer
    else:
        made.costs[question.kind] = answer


def _most(left: float, rest: int) -> float:
    """Seconds after which one of ``rest`` is given up."""
    return min(left, _GRACE_SECONDS * left / rest)


def _problem(made: SweepEstimate, text: str) -> None:
    if text not in made.problems:
        made.problems.append(text)


# ------------------------------------------------------------------------------------------------------------- texts


def _ask_family(
    made: SweepEstimate, jobs: list[ComposedJob], recorded: dict[str, Cost], deadline: float, rest: int
) -> None:
    """Plan jobs that read the same texts, and time what is not on record, in one process."""
    left, config = deadline - time.monotonic(), jobs[0].config
    name = jobs[0].settings.task.name
    if left < MIN_SECONDS:
        made.untimed[f"{name} texts"] = "no time was left"
        made.unplanned += len(jobs)
        return
    prefix = in_family(config, "")
    known = {kind.removeprefix(prefix) for kind in recorded if kind.startswith(prefix)}
    most, until = _most(left, rest), time.monotonic() + PLANNING_SHARE * left / rest
    seen = watch(_plan_and_time, (jobs, known, until), most, lambda seen: False)
    if seen.problem:
        _problem(made, seen.problem)
    loads = _loads(seen, jobs, prefix)
    made.loads += loads
    made.unplanned += len(jobs) - len(loads)
    made.costs |= {kind: recorded[kind] for kind in recorded if kind.startswith(prefix)}
    made.costs |= _costs(seen, prefix, _workers(jobs[0]))
    for load in loads:
        for piece in load.pieces:
            if not piece.there and piece.kind not in made.costs:
                made.untimed[piece.name] = seen.broken or "no time was left"
    if len(loads) < len(jobs):
        made.untimed[f"{name} texts"] = seen.broken or seen.problem or f"they were not read in {most:.0f} s"


def _loads(seen: Seen, jobs: list[ComposedJob], prefix: str) -> list[Load]:
    """The pieces that were told, their kinds those of this family, their names with the task's."""
    loads = []
    for job, (_, _, pieces) in zip(jobs, seen.told("pieces"), strict=False):
        own = (_of_family(piece, prefix, job.settings.task.name) for piece in pieces)
        loads.append(Load(tuple(own), _workers(job)))
    return loads


def _workers(job: ComposedJob) -> int:
    return job.settings.hardware.workers or os.cpu_count() or 1


def _of_family(piece: Piece, prefix: str, task: str) -> Piece:
    return dataclasses.replace(piece, kind=f"{prefix}{piece.kind}", name=f"{task} {piece.name}")


def _costs(seen: Seen, prefix: str, workers: int) -> dict[str, Cost]:
    """What was told. Teachers train in worker processes, each about as large as the one that was timed."""
    memory, found = seen.memory, {}
    for ready, *_ in seen.told("ready"):
        found[f"{prefix}{kinds.WORKERS}"] = Cost(0.0, ready - seen.began if workers > 1 else 0.0)
    for _, _, kind, unit, disk in seen.told("cost"):
        processes = 1 + workers if kind.startswith(kinds.TEACHER) and workers > 1 else 1
        found[f"{prefix}{kind}"] = Cost(0.0, unit, memory=memory and memory * processes, disk=disk)
    return found


def _plan_and_time(tell: Tell, folder: Path, jobs: list[ComposedJob], known: set[str], until: float) -> None:
    from knot_runner.estimate.texts import TextJob, plan_and_time  # torch: only in that process

    settings = jobs[0].settings
    data_root = Path(settings.paths.data).expanduser() if settings.paths.data else None
    own = [TextJob(job.run_id, job.settings, job.method) for job in jobs]
    plan_and_time(tell, folder, own, settings.paths.out, data_root, known, until)
