"""A run's own pipeline, carried out for a little while in a folder of its own, and what that says of the whole run."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from knot_runner.composing.job import ComposedJob, job_of
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.families import family_of
from knot_runner.estimate.child import ChildMessage, Seen, Tell, run_apart, watch
from knot_runner.estimate.pieces import DISTANCE_MATRICES, PERSONAL_MODELS, Cost
from knot_runner.estimate.recorded import run_space
from knot_runner.util.errors import UserError

#: So many steps in so many seconds are enough, whatever time there is.
ENOUGH_ROUNDS = (12, 4.0)
#: Seconds between two reports of other stages.
SELDOM = 0.05
#: Pieces that are not a run's main stage -> what their progress is reported as.
OTHER_STAGES = {DISTANCE_MATRICES: "distances", PERSONAL_MODELS: "personalisation"}
#: Of a run that measures seldom, so that some rounds are seen with measures and some without.
MAX_BETWEEN_MEASURES = 3

#: What a pipeline reported: (moment, title, finished steps, all steps, text). Without a title it is of no stage: the
#: executor was asked for some, or the run is through.
ProgressEvent = tuple[float, str, int, int, str]
THROUGH = "through"
#: Of a stage's seconds at least that share grows with the texts, whatever a busy machine makes of them.
LEAST_GROWTH = 1 / 8
#: What a run has shown of a kind: texts that were read, the seconds that may grow with them, and those that do not.
KindTime = tuple[float, float, float]


def time_piece(job: ComposedJob, stage: str, quota: float, most: float) -> Cost | str:
    """What pieces of ``stage`` of ``job``'s kind take; in words, why that is not known.

    ``quota``: seconds after which two steps are enough; ``most``: seconds after which it is given up. A user's mistake
    is raised as :class:`UserError`.
    """
    main = OTHER_STAGES.get(stage, family_of(job.method).stage)
    in_rounds = main == "rounds"

    def enough(seen: Seen) -> bool:
        steps = seen.told("step", main)
        if len(steps) < 3 or time.monotonic() - seen.began >= quota:
            return len(steps) >= 3
        return len(steps) > ENOUGH_ROUNDS[0] and time.monotonic() - steps[0][0] >= ENOUGH_ROUNDS[1]

    seen = watch(_carry_out, (job.config, main), most, enough, lambda folder: run_space(folder / "run"))
    if seen.problem:
        raise UserError(seen.problem)
    if seen.broken:
        return seen.broken
    every = job.settings.training.evaluate_every if in_rounds else 1
    cost = cost_of(seen, main, min(every, MAX_BETWEEN_MEASURES), every)
    if cost is not None:
        return dataclasses.replace(cost, unit=cost.unit * _side_by_side(job)) if in_rounds else cost
    reached = f"its {main} were not reached" if main else "it was not through, and has no steps to go by"
    return f"{reached if seen.told('ready') else 'its process had not begun'} in {most:.0f} s"


def _with_measures_between(job: ComposedJob) -> ComposedJob:
    """A federated job that measures in some of its rounds, with all clients in one cluster, which needs no distance."""
    training, method = job.settings.training, job.method
    every = min(training.evaluate_every, MAX_BETWEEN_MEASURES)
    training = dataclasses.replace(training, evaluate_every=every, stop_at_target=False)
    if method.clustering is not None:
        method = dataclasses.replace(method, clustering=dataclasses.replace(method.clustering, graph="none"))
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, training=training), method=method)


def _of_one_round(job: ComposedJob) -> ComposedJob:
    """A federated job with one round only, after which clients make models of their own."""
    training = dataclasses.replace(job.settings.training, rounds=1, stop_at_target=False)
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, training=training))


def _side_by_side(job: ComposedJob) -> int:
    """How many times as many clients take part in a round as in one cluster of all: a number is of each cluster."""
    spec = job.method.clustering
    several = spec is not None and spec.graph != "none" and isinstance(spec.clusters, int)
    return spec.clusters if several and isinstance(job.settings.training.participants, int) else 1


def cost_of(seen: Seen, main: str, every: int = 1, wanted: int = 1) -> Cost | None:
    """The cost that the reports of ``main`` stage come to: of each round, or of the whole of another stage (of clients'
    own models without the rounds before them).

    ``every``: rounds from one measure to the next, as they were timed; ``wanted``: as they will be. None: too little
    was seen.
    """
    ready, steps = seen.told("ready"), seen.told("step", main)
    if not ready or (len(steps) < 2 and not seen.ended):
        return None
    before = seen.told("step", "rounds") if main == OTHER_STAGES[PERSONAL_MODELS] else []
    began, end = (before or ready)[-1][0], seen.messages[-1][0]
    busy = seen.busy(steps[0][0] if steps else began)
    cost = functools.partial(Cost, busy=(busy, busy), memory=seen.memory, disk=seen.disk)
    if len(steps) < 2:
        return cost(0.0, end - began)
    unit = _per_round(steps, every, wanted) if main == "rounds" else _per_step(steps)
    start = max(0.0, steps[0][0] - began - unit * steps[0][3])
    return cost(start, unit) if main == "rounds" else cost(0.0, start + unit * steps[0][4])


def _per_round(steps: list[ChildMessage], every: int, wanted: int) -> float:
    """Seconds a round: the medians of rounds with and without measures, as often as there will be."""
    groups: dict[bool, list[float]] = {True: [], False: []}
    for before, after in zip(steps, steps[1:], strict=False):
        groups[after[3] % every == 0].append(after[0] - before[0])
    measured, bare = (statistics.median(group) if group else None for group in (groups[True], groups[False]))
    if measured is None or bare is None:
        return measured or bare or 0.0
    return bare + (measured - bare) / wanted


def _per_step(steps: list[ChildMessage]) -> float:
    """Seconds a step of those between the first and the last report: several may be reported at once."""
    done = steps[-1][3] - steps[0][3]
    return (steps[-1][0] - steps[0][0]) / done if done else 0.0


# ------------------------------------------------------------------------------------------------------------- texts


def stage_seconds(events: list[ProgressEvent]) -> dict[str, tuple[float, float]]:
    """Title -> seconds of the work, and those around it.

    Of a training of two epochs the work is the second: from its half to its last step, with what lies between epochs.
    Of a prediction it is all, from the event before its first to its last ("done").
    """
    found: dict[str, tuple[float, float]] = {}
    seconds, half = 0.0, 0.0
    for before, (at, title, done, total, text) in pairwise(events):
        seconds = seconds + at - before[0] if title else 0.0
        if text.startswith("epoch"):
            half = at if 2 * done == total else half
            if done == total:
                found[title] = (at - half, max(0.0, seconds - 2 * (at - half)))
        elif text == "done":
            if not before[4].startswith("epoch"):
                found[title] = (found.get(title, (0.0, 0.0))[0] + seconds, 0.0)
            seconds = 0.0
    return found


def costs_of(now: dict[str, KindTime], before: dict[str, KindTime], rows: dict[str, int]) -> dict[str, Cost]:
    """Kind -> its cost: a run on fewer texts, ``before``, tells what does not grow with the texts from what does.

    ``rows``: texts of an epoch, of trainings.
    """
    found = {}
    for kind, (texts, seconds, rest) in now.items():
        each, (fewer, less, _) = seconds / max(1, texts), before.get(kind, (0, 0.0, 0.0))
        if texts > fewer:
            each = min(each, max(each * LEAST_GROWTH, (seconds - less) / (texts - fewer)))
        fixed = seconds - each * texts
        found[kind] = Cost(rest, each * rows[kind] + fixed) if kind in rows else Cost(rest + fixed, each)
    return found


# ------------------------------------------------------------------------------------------------- in its own process


def _carry_out(tell: Tell, folder: Path, config: dict[str, Any], main: str) -> None:
    """The run of ``config``, whole, in ``folder``; every step of stage ``main`` is told."""
    job = job_of(config)
    last = 0.0

    def report(title: str, done: int, total: int, text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if text != "done" and (title == main or now - last > SELDOM):
            tell("step", title, done, total)
            last = now

    load_plugins(job.settings.plugins)
    tell("ready")
    if main == "rounds":
        job = _with_measures_between(job)
    elif main == OTHER_STAGES[PERSONAL_MODELS]:
        job = _of_one_round(job)
    run_apart("run", job, folder, report)
    tell("through")
