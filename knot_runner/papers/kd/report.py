"""The table of distillation methods with the gain of each over the student alone, paired over seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.report.render.table_model import Cells, ColumnGroup, Parts
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import run_rows
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.kind import TableKind, TableRequest, aggregate
from knot_runner.report.tables.methods import methods_by_data

if TYPE_CHECKING:
    import pandas as pd

GAIN = "gain"
TEACHER = "teacher"


def gains_table(request: TableRequest) -> Parts:
    """A grid with the gain of each row over the method ``options["reference"]``, and its best teacher."""
    metric = request.metrics[0]
    reference = str(request.options.get("reference", ""))
    title = METRICS[metric].title
    found = run_rows(request.runs)
    references = [own for _, own in found[found["method"] == reference].groupby("label", sort=False)]

    def cells(own: pd.DataFrame) -> Cells:
        teachers = [_best_teacher(run, metric) for run in own["run"]]
        return {GAIN: (aggregate(_gains(own, references, metric), own),), TEACHER: (aggregate(teachers, own),)}

    gained = f"{title} less that of {reference} at the same seed"
    groups = (
        ColumnGroup(GAIN, f"{gained}, in points", ("ALL",), 1, head="gain", signed=True),
        ColumnGroup(TEACHER, f"{title} of the teacher, the best one of several", ("ALL",), head="teacher"),
    )
    nothing = f"No run of {reference or 'report.reference'} is asked for, so there is no gain to show."
    return methods_by_data(request, ("ALL",), groups, cells, [] if references else [nothing])


def _gains(own: pd.DataFrame, references: list[pd.DataFrame], metric: str) -> list[float]:
    """Points gained per common seed over the reference's row with the same label, else over its first row; [] for the
    reference itself."""
    same_label = [base for base in references if base["label"].iloc[0] == own["label"].iloc[0]]
    base = next(iter([*same_label, *references]), None)
    if base is None or own["method"].iloc[0] == base["method"].iloc[0]:
        return []
    ours, theirs = (_by_seed(rows, metric) for rows in (own, base))
    return [100 * (value - theirs[seed]) for seed, value in ours.items() if seed in theirs]


def _by_seed(rows: pd.DataFrame, metric: str) -> dict[int, float]:
    values = {run.seed: run.metric(metric, "ALL") for run in rows["run"]}
    return {seed: value for seed, value in values.items() if value is not None}


def _best_teacher(run: Run, metric: str) -> float | None:
    """Best score of the frozen teachers of the run's student, on the student's test set."""
    baselines = getattr(run.result, "baselines", None) if run.status == "done" else None
    values = [float(own[metric]) for name, own in (baselines or {}).items() if name.startswith("teacher")]
    if not values:
        return None
    return max(values) if METRICS[metric].better == "higher" else min(values)


TABLE_KINDS.update(gains=TableKind(gains_table, computed_metrics, printed="methods"))
