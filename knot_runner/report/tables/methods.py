"""Tables of methods x data sets, beside the paper's, and of settings x ALL; their rows of baselines: the global
model before distillation, the best teacher, the ensemble. Table of data sets: their sizes, and the scores of models
trained on each alone."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from knot_runner.config.settings.run import ARM
from knot_runner.metrics import METRICS, top_of
from knot_runner.report import paper_tables
from knot_runner.report.render.table_model import METHOD_NAMES, ColumnGroup, Parts, TableCell, TableRow, display
from knot_runner.report.render.text import spelled_labels
from knot_runner.report.run_folders import Run
from knot_runner.report.run_rows import (
    MODELS,
    measured_line,
    one_per_seed,
    ranks,
    run_rows,
    variant,
    variants,
)
from knot_runner.report.tables.footnotes import (
    absences,
    cited,
    comparable,
    finished,
    missing_columns,
    nearness,
    protocol,
    sources,
)
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class MethodsTable:
    """A table under construction. ``members``: the runs of each of ``rows``, as in :func:`run_rows`."""

    members: list[pd.DataFrame]
    rows: list[TableRow]
    groups: tuple[ColumnGroup, ...]
    lines: list[str]

    def with_columns(
        self, groups: Sequence[ColumnGroup], cells: Sequence[dict[str, TableCell]], lines: Sequence[str]
    ) -> MethodsTable:
        """The table plus ``groups`` of one column each, with a dict of ``cells`` per row, and ``lines``."""
        rows = []
        for row, more in zip(self.rows, cells, strict=True):
            rows.append(dataclasses.replace(row, cells=row.cells | {key: (cell,) for key, cell in more.items()}))
        return MethodsTable(self.members, rows, (*self.groups, *groups), [*self.lines, *lines])

    def parts(self, request: TableRequest) -> Parts:
        """The finished table, with rows of baselines where ``report.baselines`` asks for them."""
        first = ARM if ARM in request.runs[0].job.config else "method"
        heads = (first, "settings") if len(self.rows[0].keys) > 1 else (first,)
        if not request.options.get("baselines"):
            return self.rows, heads, self.groups, self.lines
        shown = [group for group in self.groups if group.metric_name in request.metrics]
        extra = baseline_rows(finished(request.runs), shown, len(heads) > 1)
        return [*self.rows, *extra], heads, self.groups, self.lines


def methods_table(request: TableRequest) -> Parts:
    """A row per method and setting, a column per data set and their mean, for each metric."""
    return methods_by_data(request, _columns(request.printed, finished(request.runs))).parts(request)


def grid_table(request: TableRequest) -> Parts:
    """A row per method and setting, a column per metric: the mean over data sets."""
    return methods_by_data(request, ("ALL",)).parts(request)


def methods_by_data(request: TableRequest, columns: tuple[str, ...]) -> MethodsTable:
    """The table of the requested metrics on the data sets ``columns``.

    Raises :class:`UserError` for runs, or a printed table, of another task.
    """
    runs, table = request.runs, request.printed
    _one_task(runs, table)
    there, like = finished(runs), comparable(runs)
    measured = [frozenset(run.result["metrics"].get(request.metrics[0], {})) - {"ALL"} for run in there]
    all_alike = like and table is not None and all(names == set(table["columns"]) - {"ALL"} for names in measured)
    of_global = _global_sets(there)
    groups = tuple(group for metric in request.metrics for group in _groups(metric, columns, of_global, there))
    found = _rows_of_methods(runs)
    labelled, shown = found["label"].any(), spelled_labels(found["label"])
    members, rows = [], []
    for (method, label), own in found.groupby(["method", "label"], sort=False):
        cells: dict[str, tuple[TableCell, ...]] = {}
        for group in groups:
            metric = group.metric_name
            elsewhere = group.variant not in (None, *variants(f"metrics.{metric}.ALL", own["run"]))
            made = []
            for column in columns if not elsewhere else ():
                theirs = paper_tables.printed_value(table, metric, method, column) if table else None
                ours = [_in_group(run, group, column) for run in own["run"]]
                made.append(aggregate(ours, own, theirs, all_alike if column == "ALL" else like, top_of(metric)))
            cells[group.key] = tuple(made) or (TableCell(),) * len(columns)
        keys, heads = (method, label), (display(method), shown[label])
        rows.append(TableRow(keys, heads, cells) if labelled else TableRow(keys[:1], heads[:1], cells))
        members.append(own)
    named = found["method"].map(display) + found["label"].map(lambda label: label and f" {shown[label]}")
    lines = [*absences(found, named), *sources(runs), *protocol(runs), *missing_columns(columns, measured, table)]
    lines += nearness(groups, rows) + measured_line(there) + cited(table)
    if request.options.get("baselines") and any("baselines" in run.result for run in there):
        lines.append(BASELINES_LINE)
    return MethodsTable(members, rows, groups, lines)


def _one_task(runs: Sequence[Run], table: dict[str, Any] | None) -> None:
    tasks = sorted({run.job.task for run in runs})
    if len(tasks) > 1:
        raise UserError(f"a table of methods is of one task; these runs are of {', '.join(tasks)}")
    if table and table["task"] != tasks[0]:
        raise UserError(f"Table {table['table']} of the paper is of task {table['task']}; these runs are of {tasks[0]}")


def _rows_of_methods(runs: Sequence[Run]) -> pd.DataFrame:
    """Rows of methods in the paper's order; others and labels as requested."""
    rows = one_per_seed(run_rows(runs), ["method", "label"], lambda row: f"{row.method!r}, {row.label!r}")
    place = ranks(METHOD_NAMES)
    order = rows["method"].map(lambda method: place.get(method, len(place)))
    return rows.loc[order.sort_values(kind="stable").index]


def _columns(table: dict[str, Any] | None, there: Sequence[Run]) -> tuple[str, ...]:
    """The paper's data sets, then our others, the global ones last; then ALL."""
    blocks = [block for run in there for block in run.result["metrics"].values()]
    ours, of_global = dict.fromkeys(name for block in blocks for name in block), _global_sets(there)
    ordered = sorted(ours, key=lambda name: name in of_global)
    theirs = table["columns"] if table else []
    return (*(name for name in dict.fromkeys([*theirs, *ordered]) if name != "ALL"), "ALL")


def _global_sets(there: Sequence[Run]) -> set[str]:
    """The data sets of the global model; none for images, whose results have counts instead of parties."""
    roles = {}
    for run in there:
        for name, facts in run.result["datasets"].items():
            roles[name] = facts.get("role") if isinstance(facts, dict) else None
    return {name for name, role in roles.items() if role == "global"}


def _groups(metric: str, columns: tuple[str, ...], of_global: set[str], there: Sequence[Run]) -> list[ColumnGroup]:
    """A group per kind of number that a column must not mix; epsilon always names its relation and delta."""
    found = variants(f"metrics.{metric}.ALL", [run for run in there if metric in run.result["metrics"]])
    marked = tuple(column for column in columns if column in of_global)
    groups = []
    for kind in found:
        name, key, csv_name, only = METRICS[metric].title, metric, "", None
        if kind and (len(found) > 1 or metric == "epsilon"):
            name = f"{name} ({kind})"
        if len(found) > 1:
            key, csv_name, only = f"{metric}: {kind}", f"{metric} ({kind})", kind
        title = f"{name} ({METRICS[metric].better} is better)"
        head = name if columns == ("ALL",) else ""
        groups.append(ColumnGroup(key, title, columns, metric=csv_name, head=head, of_global=marked, variant=only))
    return groups


def _in_group(run: Run, group: ColumnGroup, column: str) -> float | None:
    """The run's value in ``column``, if it belongs into ``group``."""
    if group.variant not in (None, variant(f"metrics.{group.metric_name}.ALL", run.result)):
        return None
    return run.metric(group.metric_name, column)


BASELINES = ("Before", "Best teacher", "Ensemble")
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
    for name in BASELINES if len(members) else ():
        cells = {}
        for group in groups:
            made = []
            for column in group.columns:
                ours = [_baselines(run.result, group.metric_name, column)[name] for run in members["run"]]
                made.append(aggregate(ours, members, top=top_of(group.metric_name)))
            own = group.variant in (None, MODELS["global"])  # baselines are of global models
            cells[group.key] = tuple(made) if own else (TableCell(),) * len(made)
        heads = (name, "") if labelled else (name,)
        rows.append(TableRow(heads, heads, cells))
    return rows


def _baselines(result: dict[str, Any], metric: str, column: str) -> dict[str, float | None]:
    """The value of each of :data:`BASELINES`; those on the global model's test set have none in other columns."""
    found = dict.fromkeys(BASELINES) | {"Before": result["before"].get(metric, {}).get(column)}
    if column == next(name for name, facts in result["datasets"].items() if facts["role"] == "global"):
        teachers = [row[metric] for name, row in result["baselines"].items() if name != "ensemble"]
        found |= {"Best teacher": best_score(metric, teachers), "Ensemble": result["baselines"]["ensemble"][metric]}
    return found


def best_score(metric: str, scores: list[float]) -> float:
    """The best of ``scores`` in ``metric``."""
    return max(scores) if METRICS[metric].better == "higher" else min(scores)


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
    place = ranks([*known, *found["task"]])
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
