"""Cost of each run to reach a target accuracy: rounds trained, bytes sent, virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from knot_runner.report.claims.pairs import unread
from knot_runner.report.claims.spec import config_leaves
from knot_runner.report.row_keys import lookup
from knot_runner.report.run_folders import Run
from knot_runner.report.tables.federated.chilling import (
    MEGABYTE,
    WARM,
    LearningCurve,
    check_target,
    with_learning_curves,
)


@dataclass(frozen=True)
class Reading:
    """A number of one run, or ``why`` there is none. ``bound``: whether it is a lower bound (target not reached);
    ``lost``: whether its record is missing, so that its seed does not count yet."""

    value: float | None
    why: str = ""
    bound: bool = False
    lost: bool = False


@dataclass(frozen=True)
class TargetRounds:
    """Cost to reach a target. ``curves``: of finished runs, by run id; ``target``: an accuracy, or best_of_T4, whose
    values are in ``warm`` by the runs' settings; ``problems``: errors of damaged records, by run id."""

    curves: Mapping[str, LearningCurve]
    target: float | str
    warm: Mapping[Any, float]
    problems: Mapping[str, str]

    def read(self, run: Run, measure: str) -> Reading:
        """Rounds trained until the target is met; if it is not, the run's rounds + 1, as a lower bound. With
        ``measure=bytes``: megabytes sent in these rounds, both directions; the additional round counts as the cheapest
        one. With ``time``: virtual seconds until then; if not met, those of the run."""
        goal = self.warm.get(_other_settings(run)) if isinstance(self.target, str) else self.target
        if goal is None:
            return Reading(None, "no target, its T=4 run is not there", lost=True)
        own = self.curves.get(run.job.run_id)
        if measure == "time":
            if own is None:
                return Reading(None, "diverged, so that there is no clock")
            first = own.reaches_at(goal)
            return Reading(own.clock, bound=True) if first is None else Reading(first)
        first = own.reaches(goal) if own else None
        if measure == "bytes":
            return _megabytes(own, first)
        if first is not None:
            return Reading(first)
        ran = own.rounds if own else lookup(run.job.config, "training.rounds")  # a diverged run reaches no target
        return Reading((ran or 0) + 1, bound=True)


def _megabytes(own: LearningCurve | None, first: int | None) -> Reading:
    """Megabytes sent in the ``first`` rounds of a run, or a bound; a diverged run (None) has no comparable bytes."""
    if own is None:
        return Reading(None, "diverged")
    if own.sent is None:
        return Reading(None, "its record has no bytes, since an earlier version made it", lost=True)
    if first is not None:
        return Reading(own.megabytes(first))
    return Reading(own.megabytes(own.rounds) + min(own.sent) / MEGABYTE, bound=True)


def rounds_of(runs: Iterable[Run], options: Mapping[str, Any], command: str) -> TargetRounds:
    """Target costs of the federated ``runs``. Raises :class:`UserError` for an invalid ``report.target``."""
    target = check_target(options.get("target", "best_of_T4"))
    federated = [run for run in runs if run.status == "done" and run.result.get("kind") == "federated"]
    read, curves = with_learning_curves(federated, "final", command)
    warm, problems = {}, {}
    for run in read:
        config = run.job.config
        if run.status != "done":
            problems[run.job.run_id] = run.problem
        elif lookup(config, "method.temperature") == WARM and not lookup(config, "method.lr_control"):
            warm[_other_settings(run)] = curves[run.job.run_id].best
    return TargetRounds(curves, target, warm, problems)


def _other_settings(run: Run) -> Any:
    """All settings but the training temperature."""
    free = ("method.temperature", "method.lr_control", "method.name")
    kept = {
        (key, repr(value)) for key, value in config_leaves(run.job.config).items() if not (unread(key) or key in free)
    }
    return frozenset(kept | {("seed", str(run.job.seed))})
