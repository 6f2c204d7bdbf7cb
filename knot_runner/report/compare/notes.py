"""Footnotes to compared means: settings mixed within rows, confounded settings, differing seeds, missing numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knot_runner.report.compare.measures import measure_title
from knot_runner.report.compare.settings import SEED, row_numbers, sorted_texts, varying
from knot_runner.report.frame import RunSet
from knot_runner.report.render.text import first_few
from knot_runner.report.run_folders import MeasuredRun, finished
from knot_runner.report.run_rows import measured_line, variant
from knot_runner.report.tables.footnotes import one_class, training_sizes
from knot_runner.results import SEVERAL_MACHINES

if TYPE_CHECKING:
    import pandas as pd

#: A line names at most this number of settings, and of values of a setting, and counts the others.
_MAX_NAMED = 4


def lines_on(runs: RunSet, rows: int, keys: Sequence[str], measures: Sequence[str]) -> list[str]:
    """Return notes on settings mixed within rows, other differences between rows, seeds, and missing numbers.

    ``runs`` are the finished runs that are averaged, grouped by row. ``rows`` is the number of table rows, and ``keys``
    are the settings in the table.
    """
    differing = varying(runs.counted)
    row = runs.runs.row
    mixed = runs.counted[differing].groupby(row).nunique(dropna=False) > 1  # bool [rows, settings]
    mixed &= runs.settings[differing].groupby(row).nunique(dropna=False) > 1
    by_models = [run for run in runs.runs.run if any(variant(key, run.result) for key in measures)]
    return [
        *_mixed(runs, rows, mixed.drop(columns=[SEED, *keys], errors="ignore")),
        *_other_data(runs),
        *training_sizes(runs.runs.run),
        *one_class(runs.runs.run),
        *_machines(finished(runs.runs.run)),
        *_confounded(runs, {*keys, *mixed.columns[mixed.any()]}, keys),
        *(_seeds(runs, rows) if SEED not in keys else []),
        *_unmeasured(runs, measures),
        *measured_line(by_models),
    ]


def _mixed(runs: RunSet, rows: int, mixed: pd.DataFrame) -> list[str]:
    """Return a note on the settings in which runs of the same mean differ, ordered by the first affected row."""
    keys = sorted(mixed.columns[mixed.any()], key=lambda key: mixed[key].idxmax())
    if not keys:
        return []
    differences = _settings({key: runs.settings[key][runs.runs.row.map(mixed[key])] for key in keys})
    count = mixed.any(axis=1).sum()
    return [f"In {count} of {rows} rows, the mean is over runs that differ in {differences} (see --by)."]


def _other_data(runs: RunSet) -> list[str]:
    """Return a note on runs that have the same task, settings and seed but read different data."""
    task = runs.counted[[key for key in varying(runs.counted) if key.partition(".")[0] in ("task", SEED)]]
    data = runs.settings.reindex(columns=["data"])["data"].groupby(row_numbers(task, list(task)))
    if (data.nunique(dropna=False) <= 1).all():
        return []
    return ["Runs of the same task used different data. To show only runs on the data in DIR, use paths.data_dir=DIR."]


def _machines(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a note if the runs were computed on several machines."""
    names = sorted({run.result.machine for run in runs})
    if len(names) < 2 and not any(SEVERAL_MACHINES in str(run.result.notes) for run in runs):
        return []
    return [f"Computed on several machines ({'; '.join(names)}): numbers may differ in the last digits."]


def _confounded(runs: RunSet, inside: set[str], keys: Sequence[str]) -> list[str]:
    """Return a note on confounded settings.

    These are constant within rows but differ between them, and belong to config groups whose name is not in ``keys``.
    """
    shown = {key.partition(".")[0] for key in keys if key.endswith((".name", ".kind"))} | {SEED}
    first = runs.only(~runs.runs.row.duplicated()).differing()
    values = {}
    for key, column in first.items():
        if not (key.partition(".")[0] in shown or key in inside or column.str.startswith(("[", "{"), na=False).any()):
            values[key] = column
    if values:
        return [f"The rows also differ in settings that are not shown: {_settings(values)}."]
    return []


def _seeds(runs: RunSet, rows: int) -> list[str]:
    by_row = runs.runs.groupby("row")["seed"]
    repeated = (by_row.nunique() < by_row.size()).sum()
    lines = [f"In {repeated} of {rows} rows, a seed counts more than once."] if repeated else []
    sets = Counter(",".join(map(str, sorted(seeds))) for seeds in by_row.unique())
    if len(sets) > 1:
        each = [f"{text} ({count})" for text, count in sets.most_common()]
        lines.append(f"The rows have different seeds (number of rows): {first_few(each, _MAX_NAMED, '; ')}.")
    return lines


def _unmeasured(runs: RunSet, measures: Sequence[str]) -> list[str]:
    count = len(runs.runs)
    lines = []
    for key in measures:
        without = count - len(runs.values(key))
        if without:
            why = " (target not reached or not set)" if "_to_target" in key else ""
            rest = ". The number of runs follows a mean in parentheses" if without < count else ""
            rest += ". These runs reached the target, so the mean is too low" if why and rest else ""
            lines.append(f"{measure_title(key)}: {without} of {count} finished runs have no value{why}{rest}.")
    return lines


def _settings(values: dict[str, pd.Series]) -> str:
    """Return a list of settings as text, such as ``training.lr (0.1, 0.01) and 3 more settings``."""
    named = []
    for key, column in values.items():
        texts = [text[:24] for text in sorted_texts(column.unique())]
        named.append(f"{key} ({first_few(texts, _MAX_NAMED)})")
    return first_few(named, _MAX_NAMED, more=" settings")
