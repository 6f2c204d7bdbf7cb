"""Tables of methods x data sets, compared with the paper's, and of settings x ALL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from knot_runner.config.settings.run import ARM
from knot_runner.metrics import METRICS, top_of
from knot_runner.report.paper_tables import PrintedTable, printed_value
from knot_runner.report.render.table_model import METHOD_NAMES, ColumnGroup, Parts, TableCell, TableRow, display
from knot_runner.report.render.text import spelled_labels
from knot_runner.report.run_folders import MeasuredRun, Run, finished
from knot_runner.report.run_rows import measured_line, one_per_seed, ranks, run_rows, variant, variants
from knot_runner.report.tables.footnotes import absences, cited, comparable, missing_columns, sources
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.results.training import StagesResult
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def methods_table(request: TableRequest) -> Parts:
    """Return a row per method and setting, a column per data set and their mean, for each metric."""
    return methods_by_data(request, _columns(request.printed, finished(request.runs)))


def grid_table(request: TableRequest) -> Parts:
    """Return a row per method and setting, a column per metric: the mean over data sets."""
    return methods_by_data(request, ("ALL",))


def methods_by_data(
    request: TableRequest,
    columns: tuple[str, ...],
    more: Mapping[ColumnGroup, Callable[[Run], float | None]] | None = None,
    more_lines: Sequence[str] = (),
) -> Parts:
    """Return the table of the requested metrics on the data sets ``columns``, plus ``more`` columns.

    ``more``: further groups of columns, each with the function that returns its number of a run.

    Raises:
        UserError: Runs, or the printed table, belong to another task.
    """
    runs = request.runs
    table = request.printed
    more = more or {}
    tasks = sorted({run.task for run in runs})
    if len(tasks) > 1:
        raise UserError(f"a table of methods shows one task, but these runs have several: {', '.join(tasks)}")
    if table and table.task != tasks[0]:
        raise UserError(f"Table {table.table} of the paper has task={table.task}, but these runs have task={tasks[0]}")
    there = finished(runs)
    like = comparable(runs)
    measured = [frozenset(run.result.metrics.get(request.metrics[0], {})) - {"ALL"} for run in there]
    all_alike = like and table is not None and all(names == set(table.columns) - {"ALL"} for names in measured)
    groups = {group: metric for metric in request.metrics for group in _groups(metric, columns, there)}
    found = _rows_of_methods(runs)
    shown = spelled_labels(found["label"])
    first = ARM if ARM in runs[0].config else "method"
    heads = (first, "settings") if found["label"].any() else (first,)
    rows = []
    for (method, label), own in found.groupby(["method", "label"], sort=False):
        cells: dict[str, Sequence[TableCell]] = {}
        for group, metric in groups.items():
            key = f"metrics.{metric}.ALL"
            if group.variant not in (None, *variants(key, own["run"])):
                cells[group.key] = (TableCell(),) * len(columns)
                continue
            in_group = [run for run in finished(own["run"]) if group.variant in (None, variant(key, run.result))]
            made = []
            for column in columns:
                ours = [run.metric(metric, column) for run in in_group]
                theirs = printed_value(table, metric, method, column) if table else None
                made.append(aggregate(ours, own, theirs, all_alike if column == "ALL" else like, top_of(metric)))
            cells[group.key] = made
        for group, read in more.items():
            cells[group.key] = (aggregate(map(read, own["run"]), own),)
        keys = (method, label)[: len(heads)]
        names = (display(method), shown[label])[: len(heads)]
        rows.append(TableRow(keys, names, cells))
    named = found["method"].map(display) + found["label"].map(lambda label: label and f" {shown[label]}")
    lines = absences(found, named) + sources(runs) + missing_columns(columns, measured, table)
    lines += measured_line(there) + cited(table)
    return rows, heads, (*groups, *more), [*lines, *more_lines]


def _rows_of_methods(runs: Sequence[Run]) -> pd.DataFrame:
    """Return rows of methods in the paper's order; other methods and labels as requested."""
    rows = one_per_seed(run_rows(runs), ["method", "label"], lambda row: f"{row.method!r}, {row.label!r}")
    place = ranks(METHOD_NAMES)
    order = rows["method"].map(lambda method: place.get(method, len(place)))
    return rows.loc[order.sort_values(kind="stable").index]


def _columns(table: PrintedTable | None, there: Sequence[MeasuredRun]) -> tuple[str, ...]:
    """Return the paper's data sets, then our others, then the global ones, and ALL."""
    ours = dict.fromkeys(name for run in there for block in run.result.metrics.values() for name in block)
    of_global = _global_sets(there)
    ordered = sorted(ours, key=lambda name: name in of_global)
    theirs = table.columns if table else []
    return (*(name for name in dict.fromkeys([*theirs, *ordered]) if name != "ALL"), "ALL")


def _global_sets(there: Sequence[Run]) -> set[str]:
    """Return the data sets of the global model; none for images, whose results have counts instead of parties."""
    found = [run.result.datasets for run in finished(there) if isinstance(run.result, StagesResult)]
    return {name for datasets in found for name, sizes in datasets.items() if sizes.role == "global"}


def _groups(metric: str, columns: tuple[str, ...], there: Sequence[MeasuredRun]) -> list[ColumnGroup]:
    """Return a group per kind of number that a column must not mix. Epsilon always states its relation and delta."""
    found = variants(f"metrics.{metric}.ALL", [run for run in there if metric in run.result.metrics])
    of_global = _global_sets(there)
    marked = tuple(column for column in columns if column in of_global)
    groups = []
    for kind in found:
        name = METRICS[metric].title
        if kind and (len(found) > 1 or METRICS[metric].beside):
            name = f"{name} ({kind})"
        title = f"{name} ({METRICS[metric].better} is better)"
        group = ColumnGroup(metric, title, columns, head=name if columns == ("ALL",) else "", of_global=marked)
        if len(found) > 1:
            group = replace(group, key=f"{metric}: {kind}", metric=f"{metric} ({kind})", variant=kind)
        groups.append(group)
    return groups
