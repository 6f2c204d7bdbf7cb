"""The table of distillation methods, with each method's gain over a reference method such as the student alone.

The gain is the difference between two runs with the same seed.
"""

from __future__ import annotations

from knot_runner.metrics import METRICS, computed_metrics
from knot_runner.report.render.table_model import ColumnGroup, Parts
from knot_runner.report.run_folders import Run, lookup
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.kind import TableKind, TableRequest
from knot_runner.report.tables.methods import methods_by_data


def gains_table(request: TableRequest) -> Parts:
    """Return a table with each method's score, gain over the reference method, and best teacher's score.

    ``request.options["reference"]`` is the name of the reference method.
    """
    metric = request.metrics[0]
    reference = str(request.options.get("reference", ""))
    title = METRICS[metric].title
    bases: dict[str, dict[int, Run]] = {}  # label -> seed -> run of the reference
    for run in request.runs:
        if run.method == reference:
            bases.setdefault(run.label, {})[run.seed] = run

    def gain(run: Run) -> float | None:
        """Return the gain of ``run`` over the reference run with the same seed, in percentage points; None if unknown.

        The reference run has the same label (distinguishing settings) as ``run``. If there is none, use the reference
        run with the first label.
        """
        base = bases.get(run.label, next(iter(bases.values()), {})).get(run.seed)
        if base is None or run.method == reference:
            return None
        ours = run.metric(metric, "ALL")
        theirs = base.metric(metric, "ALL")
        if ours is None or theirs is None:
            return None
        return 100 * (ours - theirs)

    def best_teacher(run: Run) -> float | None:
        """Return the best score of a teacher of the run's student on the student's test set; None without teachers."""
        scores = []
        for name, of_model in (lookup(run.result, "baselines") or {}).items():
            if name.startswith("teacher"):
                scores.append(float(of_model[metric]))
        if METRICS[metric].better == "higher":
            return max(scores, default=None)
        return min(scores, default=None)

    gained = f"{title} less that of {reference} at the same seed"
    columns = {
        ColumnGroup("gain", f"{gained}, in points", ("ALL",), 1, head="gain", signed=True): gain,
        ColumnGroup("teacher", f"{title} of the teacher, the best one of several", ("ALL",), head="teacher"):
            best_teacher,
    }  # fmt: skip
    lines = []
    if not bases:
        lines.append(f"No run of {reference or 'report.reference'} is requested, so gains cannot be shown.")
    return methods_by_data(request, ("ALL",), columns, lines)


TABLE_KINDS.update(gains=TableKind(gains_table, computed_metrics, printed="methods"))
