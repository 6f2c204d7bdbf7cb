"""Registration of FedWaD's figures, table and claim measure."""

from __future__ import annotations

from knot_runner.metrics import NUMBERS, Metric
from knot_runner.papers.fedwad.clustered_table import ACCURACY_WEIGHTINGS, clustered
from knot_runner.papers.fedwad.coreset_figures import coreset_images
from knot_runner.papers.fedwad.distance_figures import distance_runtime, moving_measure
from knot_runner.papers.fedwad.matrix_figures import distance_course, matrix_figure
from knot_runner.papers.fedwad.results import DistanceResult
from knot_runner.report.claims.measures import CLAIM_MEASURES, ClaimMeasure
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.render.table_model import TableLayout
from knot_runner.report.run_folders import Run
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.kind import TableKind


def _gap(run: Run) -> float | str | None:
    """Return the relative error of a federated distance against the exact distance."""
    if not isinstance(run.result, DistanceResult):
        return None
    exact = run.result.exact
    return abs(run.result.value / exact - 1) if exact else "the exact distance is 0"


NUMBERS.update(value=Metric("value", None, preferred=True), classes_covered=Metric("classes covered", "higher"))
FIGURES.update(
    moving_measure=moving_measure, distance_runtime=distance_runtime, distance_matrix=matrix_figure,
    distance_course=distance_course, coreset_images=coreset_images,
)  # fmt: skip
TABLE_KINDS.update(clustered=TableKind(
    clustered, ACCURACY_WEIGHTINGS.keys, printed="clustered", options=("encoders",),
    layout=TableLayout(wide_heads=True, splits=True),
))  # fmt: skip
CLAIM_MEASURES.update(gap=ClaimMeasure("%", 3, 100.0, read=_gap))
