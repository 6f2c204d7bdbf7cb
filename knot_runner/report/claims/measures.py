"""Measures that claims compare, read from the records of one run.

They include the cost of each run to reach a target accuracy: rounds, bytes, virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from knot_runner.config.plugins import Table, checked, expect
from knot_runner.metrics import ACCURACY, METRICS, computed_metrics, reached_at, top_of
from knot_runner.report.claims.pairs import ModelSide, settings_of
from knot_runner.report.claims.spec import BEFORE, TARGET_MEASURES, Claim
from knot_runner.report.run_folders import Run, damaged, finished, is_finished, lookup, rounds
from knot_runner.results.base import bytes_of
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import LogRow


@dataclass(frozen=True)
class ClaimMeasure:
    """A measure.

    Attributes:
        key: Its key in ``metrics`` of ``result.json``, or "".
        items: Whether it can be recomputed from stored predictions.
        tested: Whether it is computed on test items.
        top: Its maximum in ``unit``.
        scale: Units per stored value.
        read: Returns the number of a finished run, or the reason why it has none; None if runs of that kind have no
            such number.
    """

    unit: str
    digits: int
    scale: float = 1.0
    key: str = ""
    items: bool = False
    tested: bool = False
    top: float | None = None
    read: Callable[[Run], float | str | None] | None = None


def _agreement(run: Run) -> float | str | None:
    found = getattr(run.result, "clusters", None)
    if found is None:
        return None
    return "no planted groups" if found.ari is None else found.ari


def _accepted(where: str, measure: ClaimMeasure) -> ClaimMeasure:
    expect(where, measure, ClaimMeasure)
    return measure if measure.read is None else replace(measure, read=checked(where, measure.read, _problem))


def _problem(found: object, run: Run) -> str:
    number = isinstance(found, int | float) and math.isfinite(found)
    return "" if found is None or number or isinstance(found, str) else f"{found!r:.40} instead of a finite number"


#: Measures of claims beside the metrics; a plug-in adds its own.
CLAIM_MEASURES: Table[ClaimMeasure] = Table("CLAIM_MEASURES", {
    "rounds": ClaimMeasure("rounds", 2, tested=True),
    "time": ClaimMeasure("virtual s", 2, tested=True),
    "bytes": ClaimMeasure("MB", 2, tested=True),
    "ari": ClaimMeasure("ARI", 3, read=_agreement),
}, _accepted, papers="report")  # fmt: skip

#: How clients are averaged; see ``tables.clustered.ACCURACY_WEIGHTINGS``.
OVER = ("clusters", "weighted", "unweighted")
RESULT = "result."
#: Why a run that is not done has no number.
MISSING = "not run yet"


#: Measure of claims -> its metric, where they have different names: a claim's ``loss`` is that of logits / T.
STORED = {"loss": "tempered_loss", "plain_loss": "loss"}


def measure_of(claim: Claim) -> ClaimMeasure:
    """Return the measure of ``claim``: any metric, one of :data:`CLAIM_MEASURES`, or ``result.a.b`` in ``result.json``.

    Raises:
        UserError: It is unknown.
    """
    name = claim.measure
    if name.startswith(RESULT):
        return ClaimMeasure("", 3, top=top_of(name))
    if clash := METRICS.keys() & {"plain_loss", *CLAIM_MEASURES}:
        raise UserError(f"METRICS[{min(clash)!r}] has the name of a built-in measure. Rename the metric", "plugins")
    known = [*METRICS, "plain_loss", *CLAIM_MEASURES]
    if name not in known:
        raise UserError(f"claim {claim.text!r}: unknown measure {name!r}{nearest(name, [*known, 'result.KEY'])}")
    over_clients = [metric for metric, entry in METRICS.items() if entry.over_clients]
    if claim.over is not None and (name not in over_clients or claim.over not in OVER):
        only = f"'over' requires measure {', '.join(over_clients)}, and must be one of {', '.join(OVER)}"
        raise UserError(f"claim {claim.text!r}: {only}")
    computed = computed_metrics()
    if claim.against == BEFORE and name not in computed:
        raise UserError(f"claim {claim.text!r}: before distillation, only these are measured: {', '.join(computed)}")
    if name in CLAIM_MEASURES:
        return CLAIM_MEASURES[name]
    key = STORED.get(name, name)
    metric = METRICS[key]
    top = metric.top * metric.scale if math.isfinite(metric.top) else None
    return ClaimMeasure(metric.unit, metric.unit_digits, metric.scale, key, key in computed, tested=True, top=top)


def read_measure(claim: Claim, run: Run, side: ModelSide, rounds: TargetRounds | None) -> Reading:
    """Return the claim's measure of ``run``, in its unit (fractions for accuracy).

    Raises:
        UserError: Runs of this kind do not have the measure.
    """
    name = claim.measure
    if name in TARGET_MEASURES and rounds is not None and run.status in ("done", "diverged"):
        if run.run_id in rounds.problems:
            return Reading(None, rounds.problems[run.run_id], lost=True)
        on_clock = name != "time" or run.status == "diverged" or lookup(run.result, "fleet")
        if lookup(run.result, "kind") != "federated" or not on_clock:
            raise _unmeasured(claim)
        return rounds.read(run, name)
    if not is_finished(run):
        return Reading(None, MISSING if run.status == "missing" else run.problem, lost=run.status != "diverged")
    measure = measure_of(claim)
    if measure.read:
        try:
            value = measure.read(run)
        except UserError as problem:  # a file of the run is damaged
            return Reading(None, str(problem), lost=True)
        if isinstance(value, str):
            return Reading(None, value)
    elif name.startswith(RESULT):
        value = lookup(run.result, name.removeprefix(RESULT))
    elif claim.over:
        means = run.result.metrics.get(METRICS[name].over_clients, {})
        value = means.get(claim.over, means.get("weighted") if claim.over == "clusters" else None)
    else:
        own = lookup(run.result, f"{'before' if side == 'before' else 'metrics'}.{measure.key}")
        if own and claim.dataset not in own:
            return Reading(None, f"the run has no data set {claim.dataset}")
        value = own and own[claim.dataset]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unmeasured(claim)
    return Reading(float(value))


def _unmeasured(claim: Claim) -> UserError:
    over = f" with over={claim.over}" if claim.over else ""
    return UserError(f"claim {claim.text!r}: the runs have no {claim.measure}{over}")


@dataclass(frozen=True)
class Reading:
    """A number of one run, or the reason ``why`` there is none.

    ``bound``: whether it is a lower bound (target not reached); ``lost``: whether its record is missing, so that its
    seed does not count yet.
    """

    value: float | None
    why: str = ""
    bound: bool = False
    lost: bool = False


@dataclass(frozen=True)
class TargetRounds:
    """Cost to reach a target.

    Attributes:
        curves: Learning curves of finished runs, by run id.
        target: An accuracy, or best_of_T4.
        warm: The values of best_of_T4, by the runs' settings.
        problems: Errors of damaged records, by run id.
    """

    curves: Mapping[str, LearningCurve]
    target: float | str
    warm: Mapping[Any, float]
    problems: Mapping[str, str]

    def read(self, run: Run, measure: str) -> Reading:
        """Return the number of rounds until the target is reached.

        If it is not, the run's rounds + 1, as a lower bound.

        With ``measure=bytes``: megabytes sent in these rounds, in both directions; the additional round counts as the
        cheapest one. With ``time``: virtual seconds until then; if the target is not reached, those of the run.
        """
        goal = self.warm.get(_other_settings(run)) if isinstance(self.target, str) else self.target
        if goal is None:
            return Reading(None, "no target, since its T=4 run is missing", lost=True)
        own = self.curves.get(run.run_id)
        if own is None:  # a diverged run reaches no target
            if measure == "rounds":
                return Reading((run.setting("training.rounds") or 0) + 1, bound=True)
            return Reading(None, "diverged, so there is no time to target" if measure == "time" else "diverged")
        if measure == "time":
            moment = own.reaches(goal, "clock")
            return Reading(own.clock, bound=True) if moment is None else Reading(moment)
        first = own.reaches(goal)
        if first is not None:
            return Reading(own.megabytes(int(first)) if measure == "bytes" else first)
        if measure == "rounds":
            return Reading(own.rounds + 1, bound=True)
        return Reading(own.megabytes(own.rounds) + min(own.sent) / MEGABYTE, bound=True)


def rounds_of(runs: Iterable[Run], options: Config) -> TargetRounds:
    """Return the target costs of the federated ``runs``.

    Raises:
        UserError: ``report.target`` is invalid.
    """
    target = check_target(options.get("target", "best_of_T4"))
    read, curves = with_learning_curves([run for run in finished(runs) if run.result.kind == "federated"])
    warm = {}
    problems = {}
    for run in read:
        if run.status != "done":
            problems[run.run_id] = run.problem
        elif run.setting("method.temperature") == WARM and not run.setting("method.lr_control"):
            warm[_other_settings(run)] = curves[run.run_id].best
    return TargetRounds(curves, target, warm, problems)


def _other_settings(run: Run) -> Any:
    """Return the seed, and all settings except the training temperature."""
    free = ("method.temperature", "method.lr_control", "method.name", "arm")
    return run.seed, settings_of(run, lambda key: key in free)


# ----------------------------------------------------------------------------------------------------- learning curves

#: The target of ``best_of_T4``: the best accuracy that this temperature reaches in its rounds.
WARM = 4.0
MEGABYTE = 1e6


@dataclass(frozen=True)
class LearningCurve:
    """Learning curve of a finished run.

    ``rows``: log rows of evaluated rounds; ``rounds``: number of rounds; ``sent``: bytes per round in both directions.
    """

    rows: Sequence[LogRow]
    rounds: int
    sent: Sequence[int]

    @property
    def best(self) -> float:
        """Return the highest accuracy of any round."""
        return max(float(row[ACCURACY]) for row in self.rows)

    @property
    def clock(self) -> float:
        """Return the virtual seconds of a whole run with a fleet."""
        return float(self.rows[-1]["clock"])

    def reaches(self, target: float, axis: Literal["round", "clock"] = "round") -> float | None:
        """Return the number of rounds, or the virtual seconds, until the accuracy reaches ``target``.

        None if it does not.
        """
        return reached_at([(row[axis], row[ACCURACY]) for row in self.rows], target)

    def megabytes(self, rounds: int) -> float:
        """Return 10^6 bytes sent in both directions in the first ``rounds`` rounds."""
        return sum(self.sent[:rounds]) / MEGABYTE


def with_learning_curves(runs: Sequence[Run]) -> tuple[list[Run], dict[str, LearningCurve]]:
    """Return ``runs`` and the learning curves of the finished ones, by run id.

    Runs with a damaged ``rounds.jsonl`` are marked as corrupt.
    """
    made = []
    curves = {}
    for run in runs:
        if run.status == "done":
            try:
                rows = rounds(run)
                measured = [row for row in rows if ACCURACY in row]
                curves[run.run_id] = LearningCurve(measured, len(rows), [bytes_of([row]) for row in rows])
            except UserError as problem:
                run = damaged(run, problem)
        made.append(run)
    return made, curves


def check_target(value: Any) -> float | Literal["best_of_T4"]:
    """Return ``report.target`` of a preset.

    Raises:
        UserError: It is neither an accuracy nor best_of_T4.
    """
    if value == "best_of_T4":
        return "best_of_T4"
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise UserError(f"expected 'best_of_T4' or an accuracy in (0, 1], got {value!r}", "report.target")
