"""Baseline rows of a table of methods: the global model before distillation, the best teacher, the ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from knot_runner.metrics import METRICS, top_of
from knot_runner.report.render.table_model import ColumnGroup, TableRow
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import run_rows
from knot_runner.report.tables.aggregate import aggregate

#: (result, metric, column) -> the value of a baseline, or None
BaselineValue = Callable[[dict[str, Any], str, str], float | None]
#: Footnote on the baselines.
BASELINES_LINE = (
    "Before: the global model that distillation starts from. Best teacher, ensemble (the mean of all teachers' "
    "probabilities): on the global model's test set; the best is chosen by these very numbers."
)


def baseline_rows(there: Sequence[Run], groups: Sequence[ColumnGroup], labelled: bool) -> list[TableRow]:
    """One row per baseline over the seeds of the finished runs ``there``; all methods of a seed share them."""
    having = run_rows(run for run in there if "baselines" in run.result)
    members = having.drop_duplicates("seed", keep="last").sort_values("seed")
    rows = []
    for name, value in BASELINES.items() if len(members) else ():
        cells = {}
        for group in groups:
            made = []
            for column in group.columns:
                ours = [value(run.result, group.key, column) for run in members["run"]]
                made.append(aggregate(ours, members, top=top_of(group.key)))
            cells[group.key] = tuple(made)
        heads = (name, "") if labelled else (name,)
        rows.append(TableRow(heads, heads, cells))
    return rows


def _before(result: dict[str, Any], metric: str, column: str) -> float | None:
    return result["before"].get(metric, {}).get(column)


def _best_teacher(result: dict[str, Any], metric: str, column: str) -> float | None:
    if column != _global_name(result):
        return None
    values = [row[metric] for name, row in result["baselines"].items() if name != "ensemble"]
    return max(values) if METRICS[metric].better == "higher" else min(values)


def _ensemble(result: dict[str, Any], metric: str, column: str) -> float | None:
    return result["baselines"]["ensemble"][metric] if column == _global_name(result) else None


def _global_name(result: dict[str, Any]) -> str:
    return next(name for name, facts in result["datasets"].items() if facts["role"] == "global")


BASELINES: dict[str, BaselineValue] = {"Before": _before, "Best teacher": _best_teacher, "Ensemble": _ensemble}
