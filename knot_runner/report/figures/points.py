"""The values that a figure draws. Each value belongs to a run, a round, a client or a pair of classes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from knot_runner.records import ROUNDS_FILE, has_record
from knot_runner.report.compare.measures import measure_title, resolve_measure
from knot_runner.report.compare.settings import GROUP_NAMES, resolve_key, row_numbers, short_names
from knot_runner.report.confusion import confusion_shares
from knot_runner.report.figures.marks import CONFUSION
from knot_runner.report.frame import RunSet
from knot_runner.report.render.table_model import display
from knot_runner.report.render.text import plain
from knot_runner.report.run_folders import MeasuredRun, rounds
from knot_runner.results import BYTES, FLOPS
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

#: Values of ``x`` that accumulate over rounds -> the columns of rounds.jsonl that are summed.
SUMS = {"seconds": ["seconds"], "bytes": [*BYTES], "flops": [*FLOPS]}
PROGRESS = ("round", "clock", *SUMS)
#: Value of ``y`` with a number for each client in the last evaluated round. CONFUSION has a number for each pair of
#: classes.
CLIENTS = "clients"


def points_of(done: RunSet, x: str, y: str) -> pd.DataFrame:
    """Return the values that a figure can draw, as a frame with columns for settings and for measured numbers.

    The frame is indexed by run. The axes ``x`` and ``y`` of the figure determine the rows:

    - If ``y`` is ``clients``, there is one row per run and client.
    - If ``y`` is ``confusion``, there is one row per run and pair of classes.
    - If ``y`` is another quantity and ``x`` is one of :data:`PROGRESS`, there is one row per run and round.
    - In all other cases, there is one row per run.
    """
    import pandas as pd

    if x in PROGRESS or y in (CLIENTS, CONFUSION):
        frames = {i: _rows(run, y) for i, run in done.runs.run.items()}
        numbers = pd.concat(frames, names=["run"]).droplevel(1)
        for name, columns in SUMS.items():
            if set(columns) <= set(numbers):
                numbers[name] = numbers[columns].sum(axis=1, skipna=False).groupby("run").cumsum()
    else:
        numbers = done.metrics.dropna().pivot(columns="metric", values="value")
    return done.settings.drop(columns=numbers.columns, errors="ignore").join(numbers, how="right")


def _rows(run: MeasuredRun, y: str) -> pd.DataFrame:
    """Return the rows of a run's rounds.jsonl, with added columns for the change of accuracy in each round.

    If ``y`` is ``clients`` or ``confusion``, return a row for each client or pair of classes.
    """
    import pandas as pd

    if y == CONFUSION:
        return confusion_shares(run)
    log = rounds(run) if has_record(run.folder, run.result, ROUNDS_FILE) else []
    before = evaluated = pd.Series(dtype=float)
    for row in log:
        now = pd.Series(row.pop(CLIENTS, []), dtype=float)
        if len(now):
            evaluated = now
        if "after" in row:
            trained = pd.Series(row["after"], row["participants"], dtype=float)
            row["participants_change"] = (now - trained).mean()
            row["others_change"] = (now - before).drop(trained.index, errors="ignore").mean()
        before = now
    if y == CLIENTS:
        log = [{y: value} for value in evaluated]
    return pd.json_normalize(log)


def column_of(name: str, points: pd.DataFrame) -> str:
    """Return the full name of a column of ``points``. ``name`` may be abbreviated, see :func:`resolve_measure`.

    Raises:
        UserError: No column matches ``name``.
    """
    with contextlib.suppress(UserError):
        return resolve_measure(name, list(points))
    known = [*points, *map(measure_title, points)]
    if name not in PROGRESS:  # points has these columns if the runs record them
        known += PROGRESS
    return resolve_key(name, known, "setting or measure", "config.yaml, result.json and rounds.jsonl")


def labels_of(settings: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return one label per run: the run's values of the settings ``keys``, as text.

    The result is a pandas categorical. Its categories are sorted by these values.
    """
    import pandas as pd

    short = short_names(keys)
    order = row_numbers(settings, keys).sort_values(kind="stable").index
    texts = []
    for _, values in settings.loc[order, list(keys)].iterrows():
        named = values.dropna().items()
        parts = [display(text) if key in (*GROUP_NAMES, "models") else f"{short[key]}={text}" for key, text in named]
        texts.append(plain(", ".join(parts)) or " ".join(f"no {name}" for name in short.values()))
    return pd.Series(pd.Categorical(texts, list(dict.fromkeys(texts))), order)
