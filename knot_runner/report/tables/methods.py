"""Tables with one row per method and combination of settings, compared with the papers' tables.

The columns are either all data sets, or only ALL, which stands for all data sets together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from knot_runner.config.settings.run import ARM
from knot_runner.metrics import METRICS, top_of
from knot_runner.report.paper_tables import PrintedTable, printed_value
from knot_runner.report.render.table_model import METHOD_TITLES, ColumnGroup, Parts, TableCell, TableRow, display
from knot_runner.report.render.text import spelled_labels
from knot_runner.report.run_folders import MeasuredRun, Run, finished
from knot_runner.report.run_rows import measured_line, one_per_seed, ranks, run_rows, variant, variants
from knot_runner.report.tables.footnotes import absences, cited, comparable, missing_columns, sources
from knot_runner.report.tables.kind import TableRequest, aggregate
from knot_runner.results.training import StagesResult
from knot_runner.util.errors import UserError


def methods_table(request: TableRequest) -> Parts:
    """Return a table with one row per method and combination of settings.

    Each metric has one column per data set, and a column ALL for all data sets together.
    """
    columns = _columns(request.printed, finished(request.runs))
    rows, heads, groups, lines = methods_by_data(request, columns)
    return rows, heads, [replace(group, block=group.title) for group in groups], lines


def grid_table(request: TableRequest) -> Parts:
    """Return a table with one row per method and combination of settings, and one column per metric.

    Each value is for all data sets together.
    """
    return methods_by_data(request, ("ALL",))


def methods_by_data(
    request: TableRequest,
    columns: tuple[str, ...],
    more: Mapping[ColumnGroup, Callable[[Run], float | None]] | None = None,
    more_lines: Sequence[str] = (),
) -> Parts:
    """Return a table with one row per method and combination of settings, and one column per metric and data set.

    Args:
        request: The inputs of the table.
        columns: The names of the data sets, and ALL for all data sets together.
        more: Additional columns, as a dict from column group to function. Each group has one column. The function
            takes a run and returns the run's value in this column.
        more_lines: Additional footnotes.

    Raises:
        UserError: The runs have several tasks, or the paper's table is for another task.
    """
    runs = request.runs
    table = request.printed
    more = more or {}
    tasks = sorted({run.task for run in runs})
    if len(tasks) > 1:
        raise UserError(f"a table of methods shows one task, but these runs have several: {', '.join(tasks)}")
    if table and table.task != tasks[0]:
        raise UserError(f"Table {table.table} of the paper has task={table.task}, but these runs have task={tasks[0]}")
    done = finished(runs)
    same_kind = comparable(runs)
    measured = [frozenset(run.result.metrics.get(request.metrics[0], {})) - {"ALL"} for run in done]
    same_sets = table is not None and all(names == set(table.columns) - {"ALL"} for names in measured)
    groups: dict[ColumnGroup, str] = {}
    for metric in request.metrics:
        groups |= dict.fromkeys(_groups(metric, columns, done), metric)
    frame = one_per_seed(run_rows(runs), ["method", "label"], lambda row: f"{row.method!r}, {row.label!r}")
    rank = ranks(METHOD_TITLES)  # other methods and labels keep the requested order
    frame = frame.sort_values("method", key=lambda methods: methods.map(rank).fillna(len(rank)), kind="stable")
    shown = spelled_labels(frame.label)
    heads = [ARM if ARM in runs[0].config else "method"]
    if frame.label.any():
        heads.append("settings")
    rows = []
    for (method, label), members in frame.groupby(["method", "label"], sort=False):
        cells: dict[str, Sequence[TableCell]] = {}
        for group, metric in groups.items():
            key = f"metrics.{metric}.ALL"
            in_group = [run for run in finished(members.run) if group.variant in (None, variant(key, run.result))]
            of_group = []
            for column in columns:
                ours = [run.metric(metric, column) for run in in_group]
                theirs = None
                if table and (in_group or group.variant is None):
                    theirs = printed_value(table, metric, method, column)
                is_comparable = same_kind and (same_sets or column != "ALL")
                of_group.append(aggregate(ours, members, theirs, is_comparable, top_of(metric)))
            cells[group.key] = of_group
        for group, read in more.items():
            cells[group.key] = (aggregate(map(read, members.run), members),)
        keys = (method, label)[: len(heads)]
        names = (display(method), shown[label])[: len(heads)]
        rows.append(TableRow(keys, names, cells))
    named = frame.method.map(display) + frame.label.map(lambda label: label and f" {shown[label]}")
    lines = [*absences(frame, named), *sources(runs), *missing_columns(columns, measured, table)]
    return rows, heads, (*groups, *more), [*lines, *measured_line(done), *cited(table), *more_lines]


def _columns(table: PrintedTable | None, runs: Sequence[MeasuredRun]) -> tuple[str, ...]:
    """Return the paper's data sets, our other data sets, the global model's data sets, and ALL, in this order."""
    measured = itertools.chain(*(run.result.metrics.values() for run in runs))
    of_global = _global_sets(runs)
    ordered = sorted(dict.fromkeys(itertools.chain(*measured)), key=lambda name: name in of_global)
    names = dict.fromkeys([*(table.columns if table else []), *ordered])
    names.pop("ALL", None)
    return (*names, "ALL")


def _global_sets(runs: Sequence[MeasuredRun]) -> set[str]:
    """Return the names of the data sets on which the global model is tested.

    Image runs have no such data sets, because their results have counts instead of parties.
    """
    return set(itertools.chain(*(run.result.global_sets for run in runs if isinstance(run.result, StagesResult))))


def _groups(metric: str, columns: tuple[str, ...], runs: Sequence[MeasuredRun]) -> Iterator[ColumnGroup]:
    """Yield a group of columns for each :func:`variant` of the metric, because a column must not mix variants.

    A column of epsilon always states the neighboring relation and delta.
    """
    entry = METRICS[metric]
    kinds = variants(f"metrics.{metric}.ALL", [run for run in runs if metric in run.result.metrics])
    of_global = _global_sets(runs)
    marked = tuple(column for column in columns if column in of_global)
    for kind in kinds:
        name = entry.title
        if kind and (len(kinds) > 1 or entry.beside):
            name += f" ({kind})"
        head = name if columns == ("ALL",) else ""
        group = ColumnGroup(metric, f"{name} ({entry.better} is better)", columns, head=head, of_global=marked)
        if len(kinds) > 1:
            group = replace(group, key=f"{metric}: {kind}", metric=f"{metric} ({kind})", variant=kind)
        yield group
