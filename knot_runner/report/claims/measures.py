"""What a claim compares, read from the records of one run: its measures, and rounds, bytes or time to a target."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from knot_runner.metrics import METRICS, computed_metrics, top_of
from knot_runner.report.claims.pairs import ModelSide, unread
from knot_runner.report.claims.spec import BEFORE, TARGET_MEASURES, Claim, config_leaves
from knot_runner.report.row_keys import lookup
from knot_runner.report.run_folders import Run
from knot_runner.report.tables.federated.chilling import MEGABYTE, WARM, LearningCurve, check_target, learning_curve
from knot_runner.util.errors import UserError, nearest


@dataclass(frozen=True)
class ClaimMeasure:
    """``key``: in ``metrics`` of ``result.json``, "" elsewhere; ``items``: whether stored predictions give it anew;
    ``tested``: whether it is measured on test items; ``top``: the most that it can be, in its ``unit``."""

    unit: str
    digits: int
    scale: float = 1.0
    key: str = ""
    items: bool = False
    tested: bool = False
    top: float | None = None


def _of_metric(name: str) -> ClaimMeasure:
    metric = METRICS[name]
    top = metric.top * metric.scale if math.isfinite(metric.top) else None
    return ClaimMeasure(metric.unit, metric.unit_digits, metric.scale, name, metric.resampled, tested=True, top=top)


def claim_measures() -> dict[str, ClaimMeasure]:
    """Measures by the names that claims give them: every metric, and what is read elsewhere; ``result.a.b`` besides
    is a number of ``result.json``. A claim's ``loss`` is that of logits / T, ``plain_loss`` that at T=1."""
    return {
        **{name: _of_metric(name) for name in METRICS},
        "loss": _of_metric("tempered_loss"),
        "plain_loss": _of_metric("loss"),
        "rounds": ClaimMeasure("rounds", 2, tested=True),
        "time": ClaimMeasure("virtual s", 2, tested=True),
        "bytes": ClaimMeasure("MB", 2, tested=True),
        "ari": ClaimMeasure("ARI", 3),
        "gap": ClaimMeasure("%", 3, 100.0),
    }


#: How clients are averaged; see ``clustered_grid.ACCURACY_WEIGHTINGS``.
OVER = ("clusters", "weighted", "unweighted")
RESULT = "result."
#: Why a run that is still to be made has no number.
MISSING = "not run yet"


@dataclass(frozen=True)
class Reading:
    """A number of one run, or ``why`` there is none. ``bound``: the true one is this or more (a target not reached);
    ``lost``: its record is not there, so that its seed does not count yet."""

    value: float | None
    why: str = ""
    bound: bool = False
    lost: bool = False


def measure_of(claim: Claim) -> ClaimMeasure:
    """What ``claim`` measures. Raises :class:`UserError` for one that there is not."""
    if claim.measure.startswith(RESULT):
        return ClaimMeasure("", 3, top=top_of(claim.measure))
    measures = claim_measures()
    if claim.measure not in measures:
        known = [*measures, "result.KEY"]
        raise UserError(f"claim {claim.text!r}: there is no measure {claim.measure!r}{nearest(claim.measure, known)}")
    if claim.over is not None and (claim.measure != "accuracy" or claim.over not in OVER):
        raise UserError(f"claim {claim.text!r}: over is of accuracy, and one of {', '.join(OVER)}")
    if claim.against == BEFORE and claim.measure not in computed_metrics():
        names = ", ".join(computed_metrics())
        raise UserError(f"claim {claim.text!r}: before distillation there are only {names}")
    return measures[claim.measure]


@dataclass(frozen=True)
class TargetRounds:
    """What a target took. ``courses``: of finished runs, by run id; ``target``: an accuracy, or best_of_T4, which is in
    ``warm`` by the settings of the run; ``problems``: of damaged records, by run id."""

    courses: Mapping[str, LearningCurve]
    target: float | str
    warm: Mapping[Any, float]
    problems: Mapping[str, str]

    def read(self, run: Run, measure: str) -> Reading:
        """Rounds trained until the target is met; where it is not, one more than were run, which is a bound. With
        ``measure=bytes``: megabytes sent in them, both ways; the one more round is like the cheapest. ``time``: virtual
        seconds until then; where it is not met, those of the run."""
        goal = self.warm.get(_other_settings(run)) if isinstance(self.target, str) else self.target
        if goal is None:
            return Reading(None, "no target, its T=4 run is not there", lost=True)
        own = self.courses.get(run.job.run_id)
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
        ran = own.rounds if own else lookup(run.job.config, "training.rounds")  # a diverged run reaches nothing
        return Reading((ran or 0) + 1, bound=True)


def _megabytes(own: LearningCurve | None, first: int | None) -> Reading:
    """In the ``first`` rounds of a run, or a bound; a diverged one (None) has no bytes that could be compared."""
    if own is None:
        return Reading(None, "diverged")
    if own.sent is None:
        return Reading(None, "its record has no bytes, since an earlier version made it", lost=True)
    if first is not None:
        return Reading(own.megabytes(first))
    return Reading(own.megabytes(own.rounds) + min(own.sent) / MEGABYTE, bound=True)


def rounds_of(runs: Iterable[Run], options: Mapping[str, Any], command: str) -> TargetRounds:
    """Of the federated ones among ``runs``. Raises :class:`UserError` for a ``report.target`` that cannot be."""
    target = check_target(options.get("target", "best_of_T4"))
    courses, warm, problems = {}, {}, {}
    for run in runs:
        if run.status != "done" or run.result.get("kind") != "federated":
            continue
        try:
            own = courses[run.job.run_id] = learning_curve(run, "final", command)
        except UserError as problem:
            problems[run.job.run_id] = str(problem)
            continue
        config = run.job.config
        if lookup(config, "method.temperature") == WARM and not lookup(config, "method.lr_control"):
            warm[_other_settings(run)] = own.best
    return TargetRounds(courses, target, warm, problems)


def _other_settings(run: Run) -> Any:
    """All settings but how warm the run trains."""
    free = ("method.temperature", "method.lr_control", "method.name")
    kept = {
        (key, repr(value)) for key, value in config_leaves(run.job.config).items() if not (unread(key) or key in free)
    }
    return frozenset(kept | {("seed", str(run.job.seed))})


def read_measure(claim: Claim, run: Run, side: ModelSide, rounds: TargetRounds | None) -> Reading:
    """The claim's measure of ``run``, in its own unit, fractions for accuracy.

    Raises :class:`UserError` for a measure that runs of its kind do not have.
    """
    if claim.measure in TARGET_MEASURES and rounds is not None and run.status in ("done", "diverged"):
        if run.job.run_id in rounds.problems:
            return Reading(None, rounds.problems[run.job.run_id], lost=True)
        on_clock = claim.measure != "time" or run.status == "diverged" or "fleet" in run.result
        if run.result.get("kind") != "federated" or not on_clock:
            raise _unmeasured(claim)
        return rounds.read(run, claim.measure)
    if run.status != "done":
        return Reading(None, MISSING if run.status == "missing" else run.problem, lost=run.status != "diverged")
    if claim.measure.startswith(RESULT):
        return _number(claim, lookup(run.result, claim.measure.removeprefix(RESULT)))
    if claim.measure == "ari":
        return _agreement(claim, run)
    if claim.measure == "gap":
        return _gap(claim, run)
    if claim.over:
        means = run.result.get("metrics", {}).get("client_accuracy", {})
        return _number(claim, means.get(claim.over, means.get("weighted") if claim.over == "clusters" else None))
    own = run.result.get("before" if side == "before" else "metrics", {}).get(measure_of(claim).key)
    if not own:
        raise _unmeasured(claim)
    return Reading(own[claim.dataset]) if claim.dataset in own else Reading(None, f"no data set {claim.dataset}")


def _number(claim: Claim, value: Any) -> Reading:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unmeasured(claim)
    return Reading(float(value))


def _agreement(claim: Claim, run: Run) -> Reading:
    if "clusters" not in run.result:
        raise _unmeasured(claim)
    found = run.result["clusters"].get("ari")
    return Reading(None, "no planted groups") if found is None else Reading(float(found))


def _gap(claim: Claim, run: Run) -> Reading:
    """How far a federated distance lies off the exact one, as a fraction of that."""
    if run.result.get("kind") != "distance":
        raise _unmeasured(claim)
    value, exact = run.result["value"], run.result["exact"]
    return Reading(abs(value / exact - 1)) if exact else Reading(None, "the exact distance is 0")


def _unmeasured(claim: Claim) -> UserError:
    over = f" over {claim.over}" if claim.over else ""
    return UserError(f"claim {claim.text!r}: its runs have no {claim.measure}{over}")
