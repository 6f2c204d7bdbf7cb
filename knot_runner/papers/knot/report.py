"""Registration of KNOT's figures, and KNOT's Table 1.

Table 1 gives the sizes of the data sets, and the score of the local model that is trained on each data set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from knot_runner.metrics import computed_metrics, top_of
from knot_runner.papers.knot.bias_figures import bias_figure, probe_figure
from knot_runner.papers.knot.bound_report import bound_figure
from knot_runner.papers.knot.prediction_figures import confidence, expected_label, vector_figure
from knot_runner.report.figures.registry import FIGURES
from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableLayout, TableRow
from knot_runner.report.run_folders import finished, is_finished, lookup
from knot_runner.report.run_rows import ranks, run_rows
from knot_runner.report.tables.build import TABLE_KINDS
from knot_runner.report.tables.footnotes import absences, cited, comparable, sources
from knot_runner.report.tables.kind import TableKind, TableRequest, aggregate

if TYPE_CHECKING:
    import pandas as pd

SIZES = ("train", "valid", "test")
LOCAL_GROUPS = (
    ColumnGroup("sizes", "texts", SIZES, digits=0),
    ColumnGroup("score", "score of the local model", ("score",)),
)


def local_models(request: TableRequest) -> Parts:
    """Return Table 1: a row per task and data set, with the number of texts per split and the local model's score."""
    known = request.printed.datasets if request.printed else {}
    frame = run_rows(request.runs)
    rank = ranks([*known, *frame.task])
    rows = []
    for task, members in sorted(frame.groupby("task", sort=False), key=lambda pair: rank[pair[0]]):
        printed = known.get(task, {})
        names = dict.fromkeys(printed)
        for run in finished(members.run):
            names |= dict.fromkeys(run.result.datasets)
        for name in names:
            facts = printed.get(name, {})
            score = facts.get("metric", request.metrics[0])
            sizes = [_cell(members, f"datasets.{name}.{part}", facts.get(part)) for part in SIZES]
            scored = _cell(members, f"teachers.{name}.{score}", facts.get("score"), top_of(score))
            rows.append(TableRow((task, name), (task, name), {"sizes": sizes, "score": (scored,)}))
    lines = [*absences(frame, frame.task), *sources(request.runs), *cited(request.printed)]
    return rows, ("task", "data set"), LOCAL_GROUPS, lines


def _cell(members: pd.DataFrame, key: str, paper: float | None, top: float | None = None) -> TableCell:
    """Return the cell for the dotted ``key`` of results, as a mean over seeds.

    Runs with the same seed that differ only in the method share their local models, so they count once.
    """
    values = members.run.map(lambda run: lookup(run.result, key) if is_finished(run) else None).astype(float)
    means = values.groupby(members.seed, sort=False).mean().dropna()
    return aggregate(means, members, paper, comparable(members.run), top)


FIGURES.update(
    expected_label=expected_label, confidence=confidence, tsne=vector_figure, support=vector_figure,
    epsilon=vector_figure, bias=bias_figure, probe=probe_figure, bound=bound_figure,
)  # fmt: skip
TABLE_KINDS.update(locals=TableKind(
    local_models, computed_metrics, printed="locals", needs="knot/table1", layout=TableLayout(wide_heads=True)
))  # fmt: skip
