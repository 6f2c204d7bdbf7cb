"""``knot-runner compare``: compares any runs from their records only; no preset is needed.

The result is a table with one row per group of runs, per run, or per selection of the best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from knot_runner.report.compare.against import in_order_of, resolve_axis, sorted_rows
from knot_runner.report.compare.best import (
    HalfSelection,
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
from knot_runner.report.compare.settings import SEED, Filter, resolve_key, row_numbers, select_runs, short_names
from knot_runner.report.frame import RunSet, read_runs
from knot_runner.report.run_rows import variant
from knot_runner.report.statistics.intervals import mean_estimate
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
    runs have; ``best``: a measure, ``min:KEY``, ``max:KEY`` or ""; ``over``: the searched settings; ``runs``: one row
    per run; ``x``: the axis; ``data``: leave out runs made from other files than those below it."""

    out: Path = Path("outputs")
    filters: tuple[Filter, ...] = ()
    by: Keys | None = None
    measures: Keys = ()
    best: str = ""
    over: Keys = ()
    select: HalfSelection = "test"
    sort: str = ""
    runs: bool = False
    x: str = ""
    data: str | None = None


def compare_runs(question: Question) -> Sheet:
    """The table of a comparison, one row per group of runs (or per run). Raises :class:`UserError`."""
    runs, absent = select_runs(read_runs(question.out, question.data), question.filters)
    known = runs.keys()
    by = None if question.by is None else tuple(dict.fromkeys(resolve_key(key, known) for key in question.by))
    over = tuple(dict.fromkeys(resolve_key(key, known) for key in question.over))
    axis = resolve_axis(question.x, known, known_measures(runs)) if question.x else None
    if axis is not None and axis.kind == "measure":
        question = replace(question, measures=(axis.key, *measures_of(runs, question.measures)))
    if question.best:
        sheet = _of_choices(runs, question, *searched(runs, by, over))
    else:
        keys = identifying_keys(runs.differing()) if by is None else by
        if axis is not None and axis.kind == "setting" and axis.key not in keys:
            keys = (*keys, axis.key)
        sheet = (_of_runs if question.runs else _of_groups)(runs, keys, measures_of(runs, question.measures))
    if axis is not None:
        sheet = in_order_of(sheet, axis)
    done = (runs.runs["state"] == "done").sum()
    filters = f", {' '.join(one.text for one in question.filters)}" if question.filters else ""
    title = f"{done} finished of {len(runs.runs)} runs below {question.out}{filters}"
    lines = (*sheet.lines, *absent, *left_out(runs), *runs.lines)
    return _sorted(replace(sheet, title=title, lines=lines), question.sort)


def _of_groups(runs: RunSet, keys: Keys, measures: Sequence[str]) -> Sheet:
    """One row per group: its settings, number of runs by state, and means."""
    import pandas as pd

    row = row_numbers(runs.settings, keys)
    states = pd.crosstab(row, runs.runs["state"])
    counts = states.rename(columns={"done": "n"}).reindex(columns=["n", *WITHOUT], fill_value=0)
    counts = counts[["n", *(state for state in WITHOUT if state in states)]]
    finished, own = runs.finished, row[runs.runs["state"] == "done"]
    columns, means = _means(finished, own, measures)
    cells = pd.concat([_values(runs, keys, row), counts, means], axis=1).reindex(counts.index)
    counted = [Column(name, "div." if name == "diverged" else name, "count") for name in counts]
    lines = (READING_LINES, *lines_on(finished, own, len(cells), keys, measures))
    return Sheet("", (*_key_columns(keys), *counted, *columns), cells, lines)


def _of_runs(runs: RunSet, keys: Keys, measures: Sequence[str]) -> Sheet:
    """One row per run: its id, settings, seed and state, and its numbers."""
    keys = (*(key for key in keys if key != SEED), SEED)
    heads = _key_columns(dict.fromkeys(["run_id", *keys, "status"]))
    cells = runs.settings[[head.name for head in heads]]
    found, columns = {}, []
    for key in measures:
        for (name, head), values in _by_variant(runs, key).items():
            columns.append(replace(_number_column(key, "value", list(values)), name=name, head=head))
            found[name] = values
    order = row_numbers(runs.settings, keys).sort_values(kind="stable").index
    return Sheet("", (*heads, *columns), cells.assign(**found).loc[order], ())


def _of_choices(runs: RunSet, question: Question, keys: Keys, over: Keys) -> Sheet:
    """One row per selection: its group, the selected settings, the number of candidates, and the means to report; with
    halves also the mean used for selection."""
    import pandas as pd

    rule = selection_rule(question.best, over, question.select, known_measures(runs))
    row = row_numbers(runs.settings, keys)
    choices = choose(runs, row, rule)
    half = rule.split == "half"  # then only measures from predictions, all on one half
    measures = list(dict.fromkeys([rule.measure, *measures_of(choices.reported if half else runs, question.measures)]))
    columns, means = _means(choices.reported, choices.row, measures)
    if half:
        for column, selecting in _means(choices.selected, choices.row, [rule.measure])[1].items():
            name = f"{column}.selecting_half"
            means[name] = selecting
            columns.append(replace(columns[0], name=name, head="selected by"))
    counts = choices.counts[["n", "settings"]]
    cells = [_values(runs, keys, row), _values(runs, over, choices.row), counts, means]
    heads = [*_key_columns((*keys, *over)), Column("n", "n", "count"), Column("settings", "of", "count")]
    shown = lines_on(choices.reported, choices.row, len(counts), (*keys, *over), measures)
    lines = (READING_LINES, *selection_line(rule, choices, keys), *shown)
    return Sheet("", (*heads, *columns), pd.concat(cells, axis=1).reindex(counts.index), lines)


def _values(runs: RunSet, keys: Keys, row: pd.Series) -> pd.DataFrame:
    """The values of ``keys`` in each row, from its first run."""
    first = row.drop_duplicates()
    return runs.settings.loc[first.index, list(keys)].set_axis(first)


def _means(runs: RunSet, row: pd.Series, measures: Sequence[str]) -> tuple[list[Column], pd.DataFrame]:
    """Return (columns of ``measures``, several of one that must not be mixed; their estimates by row, each over the
    finished runs that have the measure)."""
    import pandas as pd

    columns, estimates = [], {}
    for key in measures:
        top = 1.0 if is_share(key) else None
        for (name, head), numbers in _by_variant(runs, key).items():
            own = {number: mean_estimate(values.tolist(), top) for number, values in numbers.groupby(row)}
            column = _number_column(key, "measure", [one.mean for one in own.values()])
            columns.append(replace(column, name=name, head=head))
            estimates[name] = pd.Series(own, dtype=object)
    return columns, pd.DataFrame(estimates, dtype=object)


def _by_variant(runs: RunSet, key: str) -> dict[tuple[str, str], pd.Series]:
    """(Name of a column of ``key``, its head) -> its values: a column for each :func:`variant`."""
    values, title = runs.values(key), measure_title(key)
    kinds = runs.runs["record"][values.index].map(lambda run: variant(key, run.result))
    found = list(dict.fromkeys(kinds))
    if len(found) < 2:
        shown = f"{title} ({found[0]})" if found and found[0] and "epsilon" in key else title
        return {(key, shown): values}
    apart = {kind: f" ({kind})" if kind else "" for kind in found}
    return {(f"{key}{apart[kind]}", f"{title}{apart[kind]}"): values[kinds == kind] for kind in found}


def _number_column(key: str, kind: Literal["measure", "value"], values: Sequence[float]) -> Column:
    """The column of ``key``, with the unit and digits that suit its ``values``."""
    unit, factor = unit_of(key, values)
    shown = digits(key, [value / factor for value in values])
    return Column(key, measure_title(key), kind, shown, unit, factor)


def _key_columns(keys: Iterable[str]) -> list[Column]:
    return [Column(key, head, "key") for key, head in short_names(list(keys)).items()]


def _sorted(sheet: Sheet, by: str) -> Sheet:
    """Sort rows by a column: settings ascending; measures with the better first, or the higher if that is unknown."""
    if not by:
        return sheet
    for column in sheet.columns:
        if by in (column.name, column.head, column.name.removesuffix(".name"), measure_title(column.name)):
            return sorted_rows(sheet, column, 1 if direction(column.name) == "lower" else -1)
    raise UserError(f"--sort={by}: is not shown{nearest(by, [column.head for column in sheet.columns])}")
