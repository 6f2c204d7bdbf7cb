"""Footnotes of comparisons: different settings, different seeds, and missing numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from knot_runner.report.compare.measures import measure_title
from knot_runner.report.compare.settings import SEED, row_numbers, sorted_texts, varying
from knot_runner.report.frame import RunSet
from knot_runner.report.render.text import first_few
from knot_runner.report.run_folders import finished
from knot_runner.report.run_rows import measured_line, variant
from knot_runner.report.tables.footnotes import one_class, training_sizes
from knot_runner.results import SEVERAL_MACHINES

if TYPE_CHECKING:
    import pandas as pd

#: Maximum number of settings in a line, and of values per setting. The line counts the others.
_MAX_NAMED = 4


def lines_on(runs: RunSet, rows: int, keys: Sequence[str], measures: Sequence[str]) -> Iterator[str]:
    """Yield footnotes on facts that limit the comparison of table rows.

    Args:
        runs: The finished runs, with table rows assigned by :meth:`RunSet.grouped`.
        rows: The number of rows in the table.
        keys: The settings in the table.
        measures: The measures in the table.
    """
    differing = varying(runs.counted)
    row = runs.runs.row
    measured = finished(runs.runs.run)
    mixed = runs.counted[differing].groupby(row).nunique(dropna=False) > 1  # bool [rows, settings]
    mixed &= runs.settings[differing].groupby(row).nunique(dropna=False) > 1
    inside = mixed.drop(columns=[SEED, *keys], errors="ignore")
    inside = inside.loc[:, inside.any()]
    if len(inside.columns):
        named = sorted(inside, key=lambda key: inside[key].idxmax())  # by the first affected row
        differences = _settings({key: runs.settings[key][row.map(inside[key])] for key in named})
        count = inside.any(axis=1).sum()
        yield f"In {count} of {rows} rows, the mean is over runs that differ in {differences} (see --by)."
    task = runs.counted[differing].filter(regex=rf"^(task|{SEED})(\.|$)")
    data = runs.settings.reindex(columns=["data"]).groupby(row_numbers(task, list(task)))
    if (data.nunique(dropna=False) > 1).any(axis=None):
        yield "Runs of the same task used different data. To show only runs on the data in DIR, use paths.data_dir=DIR."
    yield from training_sizes(measured)
    yield from one_class(measured)
    names = sorted({run.result.machine for run in measured})
    if len(names) > 1 or SEVERAL_MACHINES in str([run.result.notes for run in measured]):
        yield f"Computed on several machines ({'; '.join(names)}): numbers may differ in the last digits."
    yield from _confounded(runs, {*keys, *mixed.columns[mixed.any()]}, keys)
    if SEED not in keys:
        yield from _seeds(runs, rows)
    yield from _unmeasured(runs, measures)
    varied = []
    for run in measured:
        if any(variant(key, run.result) for key in measures):
            varied.append(run)
    yield from measured_line(varied)


def _confounded(runs: RunSet, inside: set[str], keys: Sequence[str]) -> Iterator[str]:
    """Yield a note on confounded settings.

    A confounded setting is constant within each row but differs between rows, and belongs to a config group whose name
    is not in ``keys``.
    """
    shown = {key.partition(".")[0] for key in keys if key.endswith((".name", ".kind"))}
    first = runs.only(~runs.runs.row.duplicated()).differing()
    values = {}
    for key, column in first.drop(columns=[SEED, *inside], errors="ignore").items():
        if key.partition(".")[0] not in shown and not column.str.startswith(("[", "{"), na=False).any():
            values[key] = column
    if values:
        yield f"The rows also differ in settings that are not shown: {_settings(values)}."


def _seeds(runs: RunSet, rows: int) -> Iterator[str]:
    by_row = runs.runs.groupby("row").seed
    repeated = (by_row.nunique() < by_row.size()).sum()
    if repeated:
        yield f"In {repeated} of {rows} rows, a seed counts more than once."
    sets = Counter(",".join(map(str, sorted(seeds))) for seeds in by_row.unique())
    if len(sets) > 1:
        each = [f"{seeds} ({count})" for seeds, count in sets.most_common()]
        yield f"The rows have different seeds (number of rows): {first_few(each, _MAX_NAMED, '; ')}."


def _unmeasured(runs: RunSet, measures: Sequence[str]) -> Iterator[str]:
    count = len(runs.runs)
    for key in measures:
        without = count - len(runs.values(key))
        if not without:
            continue
        line = f"{measure_title(key)}: {without} of {count} finished runs have no value"
        of_target = "_to_target" in key
        if of_target:
            line += " (target not reached or not set)"
        if without < count:
            line += ". In each cell, the number of runs with a value follows the mean, in parentheses"
        if without < count and of_target:
            line += ". These runs reached the target, so the mean is too low"
        yield f"{line}."


def _settings(values: dict[str, pd.Series]) -> str:
    """Return a list of settings as text, such as ``training.lr (0.1, 0.01) and 3 more settings``."""
    named = []
    for key, column in values.items():
        texts = [text[:24] for text in sorted_texts(column.unique())]
        named.append(f"{key} ({first_few(texts, _MAX_NAMED)})")
    return first_few(named, _MAX_NAMED, more=" settings")
