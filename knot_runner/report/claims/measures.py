"""Measures that claims compare, read from the records of single runs.

A measure is a metric, another number in a result, or the cost of reaching a target accuracy. The cost is counted in
rounds, bytes or virtual time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from knot_runner.config.plugins import Table, checked, expect
from knot_runner.metrics import ACCURACY, METRICS, computed_metrics, reached_at, top_of
from knot_runner.records import ROUNDS_FILE, has_record
from knot_runner.report.claims.spec import BEFORE, TARGET_MEASURES, Claim
from knot_runner.report.frame import RunSet
from knot_runner.report.run_folders import SCORES, ModelSide, Run, finished, is_finished, lookup, rounds, with_files
from knot_runner.results import bytes_of
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import LogRow


@dataclass(frozen=True)
class ClaimMeasure:
    """A measure that claims can compare.

    Attributes:
        unit: The unit in which effects are displayed.
        digits: The number of decimals of a displayed effect.
        scale: The factor that converts a stored value to ``unit``.
        key: The key of the measure in ``metrics`` of ``result.json``; "" if the measure is not a metric.
        items: Whether the measure can be computed on resampled test examples.
        tested: Whether the measure depends on the test examples.
        top: The largest possible value of the measure in ``unit``; None if there is no limit.
        read: A function that returns the measure of a finished run. If the value is missing, the function returns the
            reason as text. If the measure does not apply to the run, the function returns None.
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
    clusters = lookup(run.result, "clusters")
    if clusters and clusters.ari is None:
        return "no planted groups"
    ari: float | None = lookup(clusters, "ari")
    return ari


def _accepted(where: str, measure: ClaimMeasure) -> ClaimMeasure:
    expect(where, measure, ClaimMeasure)
    if measure.read is None:
        return measure
    return replace(measure, read=checked(where, measure.read, _problem))


def _problem(value: object, run: Run) -> str:
    if value is None or isinstance(value, str) or (isinstance(value, int | float) and math.isfinite(value)):
        return ""
    return f"{value!r:.40} instead of a finite number"


#: Measures of claims in addition to metrics. A plug-in can add measures.
CLAIM_MEASURES: Table[ClaimMeasure] = Table("CLAIM_MEASURES", {
    "rounds": ClaimMeasure("rounds", 2, tested=True),
    "time": ClaimMeasure("virtual s", 2, tested=True),
    "bytes": ClaimMeasure("MB", 2, tested=True),
    "ari": ClaimMeasure("ARI", 3, read=_agreement),
}, _accepted, papers="report")  # fmt: skip

#: Ways to average an accuracy over clients.
OVER = ("clusters", "weighted", "unweighted")
RESULT = "result."
#: Measure of a claim -> the metric that it reads, if their names differ. A claim's ``loss`` is the loss of logits / T
#: at temperature T.
STORED = {"loss": "tempered_loss", "plain_loss": "loss"}


def measure_of(claim: Claim) -> ClaimMeasure:
    """Return the measure with the name ``claim.measure``.

    The name is ``plain_loss``, ``result.a.b``, the name of a metric, or a key of :data:`CLAIM_MEASURES`.
    ``result.a.b`` stands for the number at the key ``a.b`` in ``result.json``.

    Raises:
        UserError: The measure is unknown, or does not fit the claim.
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
        both = f"over={claim.over} and measure={name} cannot be combined"
        fix = f"Remove 'over', or use measure={' or '.join(over_clients)} with over={'|'.join(OVER)}"
        raise UserError(f"claim {claim.text!r}: {both}", hint=fix)
    computed = computed_metrics()
    if claim.against == BEFORE and name not in computed:
        raise UserError(
            f"claim {claim.text!r}: before distillation, only these measures are recorded: {', '.join(computed)}"
        )
    if name in CLAIM_MEASURES:
        return CLAIM_MEASURES[name]
    key = STORED.get(name, name)
    metric = METRICS[key]
    top = metric.top * metric.scale if math.isfinite(metric.top) else None
    return ClaimMeasure(metric.unit, metric.unit_digits, metric.scale, key, key in computed, tested=True, top=top)


def read_measure(claim: Claim, run: Run, side: ModelSide, rounds: TargetRounds | None) -> Reading:
    """Return a claim's measure for one run, in stored units: an accuracy is a fraction, not a percentage.

    Args:
        claim: The claim.
        run: The run, finished or not.
        side: "after" for the final model, "before" for the model before distillation.
        rounds: Learning curves and target accuracies. Only claims on the cost of reaching a target use them.

    Raises:
        UserError: The measure does not apply to ``run``.
    """
    name = claim.measure
    if name in TARGET_MEASURES and rounds is not None and run.status in ("done", "diverged"):
        on_clock = name != "time" or run.status == "diverged" or lookup(run.result, "fleet")
        if lookup(run.result, "kind") != "federated" or not on_clock:
            raise _unmeasured(claim)
        return rounds.read(run, name)
    if not is_finished(run):
        return Reading(None, run.problem, lost=run.status != "diverged")
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
    else:
        key = METRICS[name].over_clients if claim.over else measure.key
        values = (lookup(run.result, SCORES[side]) or {}).get(key, {})
        value = values.get(claim.over or claim.dataset)
        if value is None and claim.over == "clusters":
            value = values.get("weighted")
        if values and not claim.over and claim.dataset not in values:
            return Reading(None, f"the run has no data set {claim.dataset}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unmeasured(claim)
    return Reading(float(value))


def _unmeasured(claim: Claim) -> UserError:
    over = f" with over={claim.over}" if claim.over else ""
    return UserError(f"claim {claim.text!r}: the runs do not record the measure {claim.measure!r}{over}")


@dataclass(frozen=True)
class Reading:
    """A number read from a run, or the reason why the number is missing.

    Attributes:
        value: The number, or None.
        why: The reason why the number is missing.
        bound: Whether the number is only a lower bound, because the run did not reach the target accuracy.
        lost: Whether a record is missing or damaged, or the target accuracy is unknown. If true, the run's seed
            counts as incomplete.
    """

    value: float | None
    why: str = ""
    bound: bool = False
    lost: bool = False


@dataclass(frozen=True)
class TargetRounds:
    """Learning curves and target accuracies of runs.

    Attributes:
        curves: A dict from run id to learning curve, for finished runs.
        goals: A dict from run id to the target accuracy, or to a text with the reason why no target is known.
    """

    curves: Mapping[str, LearningCurve]
    goals: Mapping[str, float | str]

    def read(self, run: Run, measure: str) -> Reading:
        """Return the cost of reaching the target accuracy in ``run``.

        ``measure`` is the kind of cost, as in :meth:`LearningCurve.cost`.
        """
        goal = self.goals[run.run_id]
        if isinstance(goal, str):
            return Reading(None, goal, lost=True)
        curve = self.curves.get(run.run_id)
        if curve is not None:
            return curve.cost(goal, measure)
        if measure == "rounds":  # a diverged run reaches no target
            return Reading((run.setting("training.rounds") or 0) + 1, bound=True)
        return Reading(None, "diverged")


def rounds_of(runs: RunSet, report_target: float | str | None) -> TargetRounds:
    """Return the learning curves of the federated runs, and the target accuracy of each run.

    Args:
        runs: The runs, finished or not. The files ``rounds.jsonl`` must be undamaged.
        report_target: The preset's ``report.target``: an accuracy, or the name of a rule in :data:`TARGETS`.

    Raises:
        UserError: ``report_target`` is invalid.
    """
    target = check_target(report_target)
    _, curves = with_learning_curves([run for run in finished(runs.runs.run) if run.result.kind == "federated"])
    goals = TARGETS[target](runs, curves) if isinstance(target, str) else dict.fromkeys(runs.runs.run_id, target)
    return TargetRounds(curves, goals)


# ----------------------------------------------------------------------------------------------------- learning curves

MEGABYTE = 1e6


@dataclass(frozen=True)
class LearningCurve:
    """Learning curve of a finished run.

    Attributes:
        rows: The rows of ``rounds.jsonl`` for the rounds with an evaluation.
        rounds: The total number of rounds.
        sent: For each round, the number of bytes that the server and all clients sent.
    """

    rows: Sequence[LogRow]
    rounds: int
    sent: Sequence[int]

    @property
    def best(self) -> float:
        """Return the highest accuracy of all evaluated rounds."""
        return max(float(row[ACCURACY]) for row in self.rows)

    def reaches(self, target: float, axis: Literal["round", "clock"] = "round") -> float | None:
        """Return the number of rounds until the accuracy reaches ``target``; None if ``target`` is never reached.

        With ``axis="clock"``, return virtual seconds instead of rounds.
        """
        return reached_at([(row[axis], row[ACCURACY]) for row in self.rows], target)

    def cost(self, target: float, measure: str) -> Reading:
        """Return the cost of reaching the accuracy ``target``, or a lower bound if the target is not reached.

        ``measure`` is one of:

        - ``rounds``: number of rounds. The lower bound is one more than the run's number of rounds.
        - ``bytes``: megabytes (10^6 bytes) that the server and the clients sent until the target was reached. The lower
          bound is the total over all rounds, plus the smallest number of bytes in a round.
        - ``time``: virtual seconds. The lower bound is the duration of the whole run.
        """
        axis: Literal["round", "clock"] = "round"
        limit = self.rounds + 1
        if measure == "time":
            axis = "clock"
            limit = self.rows[-1]["clock"]
        first = self.reaches(target, axis)
        cost = limit if first is None else first
        if measure == "bytes":
            cost = sum([*self.sent, min(self.sent)][: int(cost)]) / MEGABYTE
        return Reading(cost, bound=first is None)


def with_learning_curves(runs: Sequence[Run]) -> tuple[list[Run], dict[str, LearningCurve]]:
    """Return the runs, and a dict from the id of each finished run to its learning curve.

    In the returned list, a run with a damaged ``rounds.jsonl`` has the status "damaged".
    """
    read = [with_files(run, [ROUNDS_FILE]) for run in runs]
    curves = {}
    for run in finished(read):
        if has_record(run.folder, run.result, ROUNDS_FILE):
            rows = rounds(run)
            measured = [row for row in rows if ACCURACY in row]
            curves[run.run_id] = LearningCurve(measured, len(rows), [bytes_of([row]) for row in rows])
    return read, curves


#: Name in ``report.target`` -> function of runs and learning curves that returns ``goals`` of :class:`TargetRounds`.
TARGETS: Table[Callable[[RunSet, Mapping[str, LearningCurve]], dict[str, float | str]]] = Table(
    "TARGETS", {}, papers="report"
)


def check_target(value: Any) -> float | str:
    """Return ``value`` if it is a valid ``report.target`` of a preset.

    Raises:
        UserError: ``value`` is neither an accuracy in (0, 1] nor the name of a rule in :data:`TARGETS`.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    if isinstance(value, str) and value in TARGETS:
        return value
    raise UserError(f"expected {' or '.join([*TARGETS, 'an accuracy in (0, 1]'])}, got {value!r}", "report.target")
