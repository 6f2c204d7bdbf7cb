"""Table of data sets: their sizes, and the scores of models trained on each alone."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from knot_runner.report.render.table_model import ColumnGroup, Parts, TableCell, TableRow
from knot_runner.report.run_rows import run_rows
from knot_runner.report.tables.aggregate import TableRequest, aggregate
from knot_runner.report.tables.footnotes import absences, cited, comparable, finished, protocol, sources

if TYPE_CHECKING:
    import pandas as pd

SIZES = ("train", "valid", "test")
#: Metric -> its maximum; the minimum is 0.
SHARES = {"f1": 1.0, "accuracy": 1.0}
LOCAL_GROUPS = (
    ColumnGroup("sizes", "texts", SIZES, digits=0),
    ColumnGroup("score", "score of the local model", ("score",)),
)


def local_models(request: TableRequest) -> Parts:
    """A row per task and data set: number of texts per split, and the score of its local model."""
    known = request.printed["datasets"]
    found = run_rows(request.runs)
    place = {task: i for i, task in enumerate(dict.fromkeys([*known, *found["task"]]))}
    rows = []
    for task, members in sorted(found.groupby("task", sort=False), key=lambda pair: place[pair[0]]):
        names = [name for run in finished(members["run"]) for name in run.result["datasets"]]
        for name in dict.fromkeys([*known.get(task, {}), *names]):
            facts = known.get(task, {}).get(name, {})
            score = facts.get("metric", request.metrics[0])
            sizes = tuple(_cell(members, "datasets", name, part, facts.get(part)) for part in SIZES)
            scored = _cell(members, "teachers", name, score, facts.get("score"), SHARES.get(score))
            rows.append(TableRow((task, name), (task, name), {"sizes": sizes, "score": (scored,)}))
    lines = [*absences(found, found["task"]), *sources(request.runs), *protocol(request.runs), *cited(request.printed)]
    scores = {facts["metric"] for sets in known.values() for facts in sets.values() if "metric" in facts}
    if scores == {"f1", "accuracy"}:
        lines.append("score: macro F1 for sa and erc, accuracy for nli, on the data set's own test part.")
    return rows, ("task", "data set"), LOCAL_GROUPS, lines


def _cell(
    members: pd.DataFrame, where: str, name: str, key: str, paper: float | None, top: float | None = None
) -> TableCell:
    """The cell of ``key`` for data set ``name`` in the part ``where`` of results, with one value per seed: runs of one
    seed that differ only in the method share their local models."""
    by_seed: dict[int, list[Any]] = {}
    for run in finished(members["run"]):
        value = run.result.get(where, {}).get(name, {}).get(key)
        if value is not None:
            by_seed.setdefault(run.job.seed, []).append(value)
    means = [statistics.fmean(values) for values in by_seed.values()]
    return aggregate(means, members, paper, comparable(members["run"]), top)
