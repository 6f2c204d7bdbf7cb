"""Times a run's own pipeline for a short while in a temporary folder and extrapolates to the whole run."""

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

#: (steps, seconds) after which timing stops, even if more time is available.
ENOUGH_ROUNDS = (12, 4.0)
#: Seconds between two reports of other stages.
SELDOM = 0.05
#: Pieces outside a run's main stage -> the stage name in their progress reports.
OTHER_STAGES = {DISTANCE_MATRICES: "distances", PERSONAL_MODELS: "personalisation"}
#: Maximum rounds between evaluations while timing, so that rounds with and without evaluation are observed.
MAX_BETWEEN_MEASURES = 3

#: Progress report of a pipeline: (time, title, finished steps, all steps, text). An empty title is of no stage: the
#: executor received requests, or the run has ended.
ProgressEvent = tuple[float, str, int, int, str]
THROUGH = "through"
#: Minimum share of a stage's seconds that grows with the texts, whatever a busy machine's timings suggest.
LEAST_GROWTH = 1 / 8
#: Times of a kind in a run: texts read, seconds that may grow with them, seconds that do not.
KindTime = tuple[float, float, float]


def time_piece(job: ComposedJob, stage: str, quota: float, most: float) -> Cost | str:
    """Cost of pieces of ``stage`` of ``job``'s kind, or the reason why it is unknown.

    ``quota``: seconds after which two steps are enough; ``most``: seconds after which timing is given up. Raises
    :class:`UserError` for a user error.
    """
    main = OTHER_STAGES.get(stage, family_of(job.method).stage)
    in_rounds = main == "rounds"

    def enough(seen: Seen) -> bool:
        steps = seen.starting_with("step", main)
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
    return f"{reached if seen.starting_with('ready') else 'its process had not begun'} in {most:.0f} s"


def _with_measures_between(job: ComposedJob) -> ComposedJob:
    """``job``, a federated one, evaluating every few rounds and with all clients in one cluster, so that no distances
    are needed."""
    training, method = job.settings.training, job.method
    every = min(training.evaluate_every, MAX_BETWEEN_MEASURES)
    training = dataclasses.replace(training, evaluate_every=every, stop_at_target=False)
    if method.clustering is not None:
        method = dataclasses.replace(method, clustering=dataclasses.replace(method.clustering, graph="none"))
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, training=training), method=method)


def _of_one_round(job: ComposedJob) -> ComposedJob:
    """``job``, a federated one, with a single round before personalisation."""
    training = dataclasses.replace(job.settings.training, rounds=1, stop_at_target=False)
    return dataclasses.replace(job, settings=dataclasses.replace(job.settings, training=training))


def _side_by_side(job: ComposedJob) -> int:
    """Factor by which more clients take part in a round than with a single cluster: a number of participants is per
    cluster."""
    spec = job.method.clustering
    several = spec is not None and spec.graph != "none" and isinstance(spec.clusters, int)
    return spec.clusters if several and isinstance(job.settings.training.participants, int) else 1


def cost_of(seen: Seen, main: str, every: int = 1, wanted: int = 1) -> Cost | None:
    """Cost from the reports of stage ``main``: per round, or of the whole of another stage (personalisation without the
    rounds before it). None if too little was observed.

    ``every``: rounds between evaluations while timing; ``wanted``: in the real run.
    """
    ready, steps = seen.starting_with("ready"), seen.starting_with("step", main)
    if not ready or (len(steps) < 2 and not seen.ended):
        return None
    before = seen.starting_with("step", "rounds") if main == OTHER_STAGES[PERSONAL_MODELS] else []
    began, end = (before or ready)[-1][0], seen.messages[-1][0]
    busy = seen.busy(steps[0][0] if steps else began)
    cost = functools.partial(Cost, busy=(busy, busy), memory=seen.memory, disk=seen.disk)
    if len(steps) < 2:
        return cost(0.0, end - began)
    unit = _per_round(steps, every, wanted) if main == "rounds" else _per_step(steps)
    start = max(0.0, steps[0][0] - began - unit * steps[0][3])
    return cost(start, unit) if main == "rounds" else cost(0.0, start + unit * steps[0][4])


def _per_round(steps: list[ChildMessage], every: int, wanted: int) -> float:
    """Seconds per round: medians of rounds with and without evaluation, weighted by their frequency in the real run."""
    groups: dict[bool, list[float]] = {True: [], False: []}
    for before, after in zip(steps, steps[1:], strict=False):
        groups[after[3] % every == 0].append(after[0] - before[0])
    measured, bare = (statistics.median(group) if group else None for group in (groups[True], groups[False]))
    if measured is None or bare is None:
        return measured or bare or 0.0
    return bare + (measured - bare) / wanted


def _per_step(steps: list[ChildMessage]) -> float:
    """Seconds per step between the first and the last report; a report may cover several steps."""
    done = steps[-1][3] - steps[0][3]
    return (steps[-1][0] - steps[0][0]) / done if done else 0.0


# ------------------------------------------------------------------------------------------------------------- texts


def stage_seconds(events: list[ProgressEvent]) -> dict[str, tuple[float, float]]:
    """Title -> (seconds of the work, other seconds).

    Of a training of two epochs the work is the second epoch: from half of the steps to the last, with the time between
    epochs. Of a prediction it is everything from the event before its first to its last ("done").
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
    """Kind -> its cost. The times ``before``, of a run on fewer texts, separate fixed time from time that grows with
    texts.

    ``rows``: texts per epoch, of trainings.
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
    """Run ``config`` completely in ``folder`` and report every step of stage ``main``."""
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
