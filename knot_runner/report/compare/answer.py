"""``knot-runner compare``: compares any runs from their records only; no preset is needed.

The result is a table with one row per group of runs, or per selection of the best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.metrics import beside
from knot_runner.report.compare.best import (
    Keys,
    choose,
    identifying_keys,
    searched,
    selection_line,
    selection_rule,
)
from knot_runner.report.compare.files import Column, Sheet
from knot_runner.report.compare.measures import (
    digits,
    direction,
    is_share,
    known_measures,
    measure_title,
    measures_of,
    unit_of,
)
from knot_runner.report.compare.notes import left_out, lines_on
from knot_runner.report.compare.settings import (
    Filter,
    resolve_key,
    row_numbers,
    select_runs,
    short_names,
    sort_places,
)
from knot_runner.report.frame import RunSet, read_runs
from knot_runner.report.run_rows import variant
from knot_runner.report.statistics.intervals import Estimate, mean_estimate
from knot_runner.util.errors import UserError, nearest

if TYPE_CHECKING:
    import pandas as pd

READING_LINES = (
    "Mean ± half of its 95% t interval over the n finished runs of a row; of a share [low, high] where that is cut at "
    "0 or 1. These are estimates: only claims decide what is better."
)
#: States of runs without numbers; each that occurs gets a column.
WITHOUT = ("diverged", "failed", "damaged", "other data", "other version", "unfinished")


@dataclass(frozen=True)
class Question:
    """The user's request. ``by``: None for the settings that distinguish the runs; ``measures``: () for those that all
    runs have; ``best``: a measure, ``min:KEY``, ``max:KEY`` or ""; ``over``: the searched settings; ``data``: leave out
    runs made from other files than those below it."""

    out: Path = Path("outputs")
    filters: tuple[Filter, ...] = ()
    by: Keys | None = None
    measures: Keys = ()
    best: str = ""
    over: Keys = ()
    sort: str = ""
    data: str | None = None


def compare_runs(question: Question) -> Sheet:
    """The table of a comparison, one row per group of runs, or per selection of the best. Raises :class:`UserError`."""
    import pandas as pd

    runs, absent = select_runs(read_runs(question.out, question.data), question.filters)
    known = runs.keys()
    by = None if question.by is None else tuple(dict.fromkeys(resolve_key(key, known) for key in question.by))
    over = tuple(dict.fromkeys(resolve_key(key, known) for key in question.over))
    if question.best:
        keys, over = searched(runs, by, over)
        rule = selection_rule(question.best, over, known_measures(runs))
        row = row_numbers(runs.settings, keys)
        choices = choose(runs, row, rule)
        counts = choices.counts[["n", "settings"]]
        averaged = choices.runs
        row_of = choices.row
        settings = [_values(runs, keys, row), _values(runs, over, row_of)]
        measures = list(dict.fromkeys([rule.measure, *measures_of(runs, question.measures)]))
        lines = [READING_LINES, *selection_line(rule, choices, keys)]
        shown = (*keys, *over)
    else:
        shown = identifying_keys(runs.differing()) if by is None else by
        measures = measures_of(runs, question.measures)
        row = row_numbers(runs.settings, shown)
        states = pd.crosstab(row, runs.runs["state"])
        counts = states.rename(columns={"done": "n"}).reindex(columns=["n", *WITHOUT], fill_value=0)
        counts = counts[["n", *(state for state in WITHOUT if state in states)]]
        averaged = runs.finished
        row_of = row[runs.runs["state"] == "done"]
        settings = [_values(runs, shown, row)]
        lines = [READING_LINES]
    columns, means = _means(averaged, row_of, measures)
    heads = {"diverged": "div.", "settings": "of"}
    columns = [
        *(Column(key, head, "key") for key, head in short_names(shown).items()),
        *(Column(name, heads.get(name, name), "count") for name in counts),
        *columns,
    ]
    lines += lines_on(averaged, row_of, len(counts), shown, measures)
    done = (runs.runs["state"] == "done").sum()
    filters = f", {' '.join(one.text for one in question.filters)}" if question.filters else ""
    title = f"{done} finished of {len(runs.runs)} runs below {question.out}{filters}"
    cells = pd.concat([*settings, counts, means], axis=1).reindex(counts.index)
    sheet = Sheet(title, columns, cells, [*lines, *absent, *left_out(runs), *runs.lines])
    return _sorted(sheet, question.sort)


def _values(runs: RunSet, keys: Keys, row: pd.Series) -> pd.DataFrame:
    """The values of ``keys`` in each row, from its first run."""
    first = row.drop_duplicates()
    return runs.settings.loc[first.index, list(keys)].set_axis(first)


def _means(runs: RunSet, row: pd.Series, measures: Sequence[str]) -> tuple[list[Column], pd.DataFrame]:
    """Return (columns of ``measures``, several of one that must not be mixed; their estimates by row, each over the
    finished runs that have the measure)."""
    import pandas as pd

    columns = []
    estimates = {}
    for key in measures:
        top = 1.0 if is_share(key) else None
        for (name, head), numbers in _by_variant(runs, key).items():
            own = {number: mean_estimate(values.tolist(), top) for number, values in numbers.groupby(row)}
            shown = [one.mean for one in own.values() if one.mean is not None]
            unit, factor = unit_of(key, shown)
            places = digits(key, [value / factor for value in shown])
            columns.append(Column(name, head, "measure", places, unit, factor))
            estimates[name] = pd.Series(own, dtype=object)
    return columns, pd.DataFrame(estimates, dtype=object)


def _by_variant(runs: RunSet, key: str) -> dict[tuple[str, str], pd.Series]:
    """(Name of a column of ``key``, its head) -> its values: a column for each :func:`variant`."""
    values = runs.values(key)
    title = measure_title(key)
    kinds = runs.runs["record"][values.index].map(lambda run: variant(key, run.result))
    several = kinds.nunique() > 1
    found = {}
    for kind, own in values.groupby(kinds, sort=False):
        shown = f" ({kind})" if kind and (several or beside(key)) else ""
        found[key + shown if several else key, title + shown] = own
    return found or {(key, title): values}


def _sorted(sheet: Sheet, by: str) -> Sheet:
    """Sort rows by a column: settings ascending; measures with the better first, or the higher if that is unknown."""
    import pandas as pd

    if not by:
        return sheet
    for column in sheet.columns:
        if by not in (column.name, column.head, column.name.removesuffix(".name"), measure_title(column.name)):
            continue
        cells = sheet.cells[column.name]
        if column.kind == "key":
            places = sort_places(cells)
        else:
            numbers = [cell.mean if isinstance(cell, Estimate) else cell for cell in cells]
            places = pd.Series(numbers, cells.index, "float64")
            if direction(column.name) != "lower":
                places = -places
        return replace(sheet, cells=sheet.cells.loc[places.sort_values(kind="stable").index])
    raise UserError(f"is not shown{nearest(by, [column.head for column in sheet.columns])}", f"--sort={by}")
