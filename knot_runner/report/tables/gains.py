"""Tables of methods with further columns: the gain of distillation over the student alone, paired over seeds; the
trade-offs of clients' own models, ID accuracy at an OOD accuracy near the last round's, and area."""

from __future__ import annotations

import functools
from collections.abc import Callable

from knot_runner.metrics import METRICS
from knot_runner.report.render.table_model import ColumnGroup, Parts
from knot_runner.report.run_folders import Run, lookup
from knot_runner.report.tables.kind import TableRequest
from knot_runner.report.tables.methods import methods_by_data


def gains_table(request: TableRequest) -> Parts:
    """A grid with the gain of each row over the method ``options["reference"]``, and its best teacher."""
    metric = request.metrics[0]
    reference = str(request.options.get("reference", ""))
    title = METRICS[metric].title
    bases: dict[str, dict[int, Run]] = {}  # label -> seed -> run of the reference
    for run in request.runs:
        if run.method == reference:
            bases.setdefault(run.label, {})[run.seed] = run

    def gain(run: Run) -> float | None:
        """Points gained over the reference with the same label and seed, else over that with the first label."""
        base = bases.get(run.label, next(iter(bases.values()), {})).get(run.seed)
        if base is None or run.method == reference:
            return None
        ours, theirs = run.metric(metric, "ALL"), base.metric(metric, "ALL")
        return None if ours is None or theirs is None else 100 * (ours - theirs)

    gained = f"{title} less that of {reference} at the same seed"
    columns: dict[ColumnGroup, Callable[[Run], float | None]] = {
        ColumnGroup("gain", f"{gained}, in points", ("ALL",), 1, head="gain", signed=True): gain,
        ColumnGroup("teacher", f"{title} of the teacher, the best one of several", ("ALL",), head="teacher"):
            functools.partial(_best_teacher, metric=metric),
    }  # fmt: skip
    nothing = f"No run of {reference or 'report.reference'} is asked for, so there is no gain to show."
    return methods_by_data(request, ("ALL",), columns, [] if bases else [nothing])


def _best_teacher(run: Run, metric: str) -> float | None:
    """Best score of the frozen teachers of the run's student, on the student's test set."""
    baselines = getattr(run.result, "baselines", None) if run.status == "done" else None
    values = [float(own[metric]) for name, own in (baselines or {}).items() if name.startswith("teacher")]
    if not values:
        return None
    return max(values) if METRICS[metric].better == "higher" else min(values)


#: Default metrics of a table of kind personal.
PERSONAL_METRICS = ("id_accuracy", "ood_accuracy", "clients_hurt")
#: Column of a table of kind personal -> key of its number in ``personalization`` of a result, "" for the steps.
TRADE_OFFS = {
    ColumnGroup(
        "matched", "best ID accuracy at an OOD accuracy of at most a point less", ("ALL",), head="ID at OOD -1"
    ): "id_at_matched_ood.1",
    ColumnGroup("area", "area of the trade-off curve", ("ALL",), 4, head="area"): "area",
    ColumnGroup("steps", "optimizer steps of a client after the rounds", ("ALL",), 0, head="steps"): "",
}
TRADE_OFF_LINE = (
    "ID: a client's model on its own test examples, OOD: on each other client's, all clients alike. ID at OOD -1: the "
    "best of the run's measured models whose OOD accuracy is at most a point below that of the last round. Area: what "
    "the curve of (OOD, ID) dominates above guessing's OOD and the last round's ID accuracy; both include the last "
    "round's model."
)


def personal_table(request: TableRequest) -> Parts:
    """A grid with the trade-offs of clients' own models."""
    columns = {group: functools.partial(_trade_off, key=key) for group, key in TRADE_OFFS.items()}
    return methods_by_data(request, ("ALL",), columns, [TRADE_OFF_LINE])


def _trade_off(run: Run, key: str) -> float | None:
    facts = getattr(run.result, "personalization", None) if run.status == "done" else None
    if facts and not key:
        return max(float(point.sgd_steps) for point in facts.points)
    value: float | None = lookup(facts, key)
    return value
