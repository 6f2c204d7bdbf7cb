"""The command ``knot-runner compare``, which compares any runs without a preset.

The result is a table with one row per group of runs. With ``--best``, each combination of values of the searched
settings is a candidate, and each row shows only the best candidate of its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from knot_runner.metrics import beside, top_of
from knot_runner.report.compare.best import Keys, choose, identifying_keys, searched, selection_line, selection_rule
from knot_runner.report.compare.measures import (
    digits,
    direction,
    known_measures,
    measure_title,
    measures_of,
    unit_of,
)
from knot_runner.report.compare.notes import lines_on
from knot_runner.report.compare.settings import resolve_keys, short_names, sort_key, typed_column
from knot_runner.report.frame import RunSet
from knot_runner.report.render.table_model import ColumnGroup, ResultTable, TableCell, TableLayout, TableRow
from knot_runner.report.render.text import estimate_text
from knot_runner.report.run_rows import variant
from knot_runner.report.statistics.intervals import mean_interval
from knot_runner.report.tables.footnotes import not_counted
from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

#: States of runs that have no numbers. Each state that occurs has a column with the number of runs in this state.
WITHOUT = ("diverged", "failed", "damaged", "different data", "different version", "unfinished")
#: Count of runs -> heading of the column, if it differs from the name of the count.
COUNT_HEADS = {"diverged": "div.", "settings": "of"}
#: How to read a cell.
CELL_READING = (
    "Mean ± half of its 95% t interval over the n finished runs of a row; for a share, [low, high] if the interval is "
    "cut at 0 or 1. These are estimates: only claims decide what is better."
)
#: Longer settings are truncated in the terminal, Markdown and LaTeX, but not in CSV.
LONGEST_CELL = 40


def compare_runs(
    runs: RunSet, by: Keys | None = None, measures: Keys = (), best: str = "", over: Keys = (), sort: str = ""
) -> ResultTable:
    """Return a table that compares runs, with one row per group of runs.

    Args:
        runs: The runs to compare, see :func:`selected_runs`.
        by: The settings that define the groups. The runs of a group have equal values of these settings. None selects
            the settings that distinguish the runs.
        measures: The measures in the table. () selects default measures, see :func:`measures_of`.
        best: ``KEY``, ``min:KEY`` or ``max:KEY``, where KEY is a measure. Each row then shows only the runs with the
            best values of the searched settings. "" selects all runs.
        over: The searched settings, see :func:`searched`.
        sort: The column by which the rows are sorted, or "".

    Raises:
        UserError: The request does not fit the runs.
    """
    import pandas as pd

    if by is not None:
        by = resolve_keys(by, runs.keys())
    over = resolve_keys(over, runs.keys())
    measured = measures_of(runs, measures)
    lines: list[str] = []
    if best:
        keys, over = searched(runs, by, over)
        rule = selection_rule(best, over, known_measures(runs))
        runs = runs.grouped(keys)
        averaged, counts = choose(runs, rule)
        settings = _values(runs, keys).join(_values(averaged, over))
        measured = list(dict.fromkeys([rule.measure, *measured]))
        lines += selection_line(rule, counts, keys)
        counts = counts[["n", "settings"]]
    else:
        keys = identifying_keys(runs.differing()) if by is None else by
        runs = runs.grouped(keys)
        averaged = runs.finished
        settings = _values(runs, keys)
        states = pd.crosstab(runs.runs.row, runs.runs.state).rename(columns={"done": "n"})
        counts = states.reindex(columns=["n", *(state for state in WITHOUT if state in states)], fill_value=0)
    shown = list(settings)
    groups = dict(_measured(averaged, measured, counts.n))
    keys_of = settings.reindex(counts.index).join(counts.astype(str)).astype(object)
    rows = []
    for number, texts in keys_of.where(keys_of.notna(), None).T.to_dict("list").items():
        cells = {group.key: [by_row.get(number, TableCell())] for group, by_row in groups.items()}
        rows.append(TableRow(tuple(texts), tuple(map(_printed, texts)), cells))
    lines += lines_on(averaged, len(counts), shown, measured)
    title = f"{len(runs.finished.runs)} finished of {len(runs.runs)} runs below {runs.out}"
    if runs.filters:
        title += f", {runs.filters}"
    lines += [*not_counted(runs.runs.run), *runs.lines]
    heads = [*short_names(shown).values(), *(COUNT_HEADS.get(name, name) for name in counts)]
    right = [typed_column(keys_of[key]).dtype != object for key in keys_of]
    table = ResultTable(
        title, heads, list(groups), rows, lines, list(keys_of), right, CELL_READING,
        TableLayout(wide_heads=True, splits=True),
    )  # fmt: skip
    return _sorted(table, sort)


def _printed(value: str | None) -> str:
    if value is not None and len(value) > LONGEST_CELL:
        return f"{value[: LONGEST_CELL - 3]}..."
    return value or ""


def _values(runs: RunSet, keys: Keys) -> pd.DataFrame:
    """Return the values of ``keys`` for each table row, taken from the first run of the row."""
    first = runs.runs.row.drop_duplicates()
    return runs.settings.loc[first.index, list(keys)].set_axis(first)


def _measured(
    runs: RunSet, measures: Sequence[str], planned: pd.Series
) -> Iterator[tuple[ColumnGroup, dict[int, TableCell]]]:
    """Yield each measure's column, and a dict from table row to the cell with the mean over the row's finished runs.

    A measure has several columns if its values are of several kinds (:func:`variant`), which no mean may mix.
    ``planned`` is the number of finished runs in each row. If fewer runs have the measure, the cell shows the number of
    runs in the mean.
    """
    for key in measures:
        top = top_of(key)
        if top != 1:
            top = None
        for (name, head), numbers in _by_variant(runs, key).items():
            estimates = {}
            means = []
            for row, values in numbers.groupby(runs.runs.row):
                mean, half = mean_interval(values.tolist())
                means.append(mean)
                estimates[row] = (mean, half, len(values))
            unit, factor = unit_of(key, means)
            decimals = digits(key, [mean / factor for mean in means])
            cells = {}
            for row, (mean, half, count) in estimates.items():
                text = estimate_text(mean / factor, half and half / factor, decimals, top)
                if count < planned[row]:
                    text += f" ({count})"
                cells[row] = TableCell(mean, half, count, top, text=text)
            printed = f"{head} ({unit})".removesuffix(" ()")
            yield ColumnGroup(name, head, ("ALL",), decimals, head=printed), cells


def _by_variant(runs: RunSet, key: str) -> dict[tuple[str, str], pd.Series]:
    """Return a dict from (column name, heading) to the values of ``key``, with one column per :func:`variant`."""
    values = runs.values(key)
    kinds = runs.runs.run[values.index].map(lambda run: variant(key, run.result))
    several = kinds.nunique() > 1
    columns = {}
    for kind, of_kind in values.groupby(kinds, sort=False):
        shown = f" ({kind})" if kind and (several or beside(key)) else ""
        columns[key + shown if several else key, measure_title(key) + shown] = of_kind
    return columns or {(key, measure_title(key)): values}


def _sorted(table: ResultTable, by: str) -> ResultTable:
    """Sort rows by a column.

    Settings and numbers of runs are sorted in ascending order. Measures are sorted from best to worst, or from high to
    low if the better direction is unknown.
    """
    import pandas as pd

    if not by:
        return table
    for i, (name, head) in enumerate(zip(table.keys, table.heads, strict=True)):
        if by in (name, head, name.removesuffix(".name")):
            return replace(table, rows=sorted(table.rows, key=lambda row: sort_key(row.keys[i])))
    names = [*table.heads]
    for group in table.groups:
        names.append(group.title)
        if by in (group.key, group.title, measure_title(group.key)):
            means = pd.Series([row.cells[group.key][0].mean for row in table.rows], dtype="float64")
            order = means.sort_values(ascending=direction(group.key) == "lower", kind="stable").index
            return replace(table, rows=[table.rows[k] for k in order])
    raise UserError(f"not a column of the table{nearest(by, names)}", f"--sort={by}")
