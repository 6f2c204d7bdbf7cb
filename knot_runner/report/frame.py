"""Runs as pandas frames: settings, states and measured numbers, read from run folders."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from knot_runner import provenance
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.run_id import counted_settings
from knot_runner.config.strict import content_of, without
from knot_runner.records import ROUNDS_FILE, has_record
from knot_runner.report.compare.settings import (
    Filter,
    flatten_settings,
    row_numbers,
    select_runs,
    typed_column,
    varying,
    written,
)
from knot_runner.report.render.text import first_few
from knot_runner.report.run_folders import Job, Run, is_finished, load_runs, lookup, rounds
from knot_runner.report.run_rows import IDENTITY, leaves, run_rows
from knot_runner.util.config_yaml import Config, read_config
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow

if TYPE_CHECKING:  # pandas takes half a second to import
    import pandas as pd

CONFIG = "config.yaml"
#: What a row of a frame describes: a run, a round of a run, or a client in a round.
Per = Literal["run", "round", "client"]
#: Numbers in a result, or a row of rounds.jsonl, that are not measurements.
NO_MEASURES = ("seed", "threads", "round")
#: Settings that other columns of the frame already hold.
_TOLD = ("task.name", "method.name", "seed", "run_id", "status")
#: A line names at most this number of folders, and counts the others.
_MAX_NAMED = 3


@dataclass(frozen=True)
class RunSet:
    """Runs below a folder, as several pandas frames.

    Each run has one index value, which is the same in all frames.

    Attributes:
        out: The folder that contains the run folders.
        runs: One row per run, as returned by :func:`run_rows`.
        settings: One row per run and one column per setting, named by dotted key. Values are text in the form of
            :func:`written`. Missing settings are NaN. Further columns are ``run_id``, ``status`` and ``data``.
        counted: Like ``settings``, but only with the settings that can change a result.
        metrics: One row for each number in the result of each finished run. The column ``metric`` is the dotted key in
            the result, such as ``metrics.accuracy.ALL``. The column ``value`` is the number, or NaN for null.
        lines: Notes for the user, for example on folders that were left out.
        filters: The filters that selected the runs, as typed by the user.
    """

    out: Path
    runs: pd.DataFrame
    settings: pd.DataFrame
    counted: pd.DataFrame
    metrics: pd.DataFrame
    lines: tuple[str, ...] = ()
    filters: str = ""

    def only(self, kept: Sequence[bool] | pd.Series) -> RunSet:
        """Return the runs for which ``kept`` is true."""
        runs = self.runs[kept]
        metrics = self.metrics[self.metrics.index.isin(runs.index)]
        return replace(
            self, runs=runs, settings=self.settings.loc[runs.index], counted=self.counted.loc[runs.index],
            metrics=metrics,
        )  # fmt: skip

    def having(self, wanted: Config) -> RunSet:
        """Return the runs that have all settings in ``wanted``.

        ``wanted`` maps the dotted key of a setting to its value or to a list of accepted values. Missing settings are
        treated as null.
        """
        fitting = self.runs.run.notna()
        for key, value in wanted.items():
            values = value if isinstance(value, list) else [value]
            fitting &= self.settings[key].fillna(written(None)).isin(map(written, values))
        return self.only(fitting)

    def grouped(self, keys: Sequence[str]) -> RunSet:
        """Return a copy that assigns each run to a row of a table.

        In the copy, the column ``row`` of ``runs`` contains the index of each run's table row. Runs with equal values
        of the settings ``keys`` are in the same table row, see :func:`row_numbers`.
        """
        return replace(self, runs=self.runs.assign(row=row_numbers(self.settings, keys)))

    @property
    def finished(self) -> RunSet:
        """Return the finished runs."""
        return self.only(self.runs.state == "done")

    def keys(self) -> list[str]:
        """Return the dotted keys of all settings that at least one run has."""
        return list(self.settings.columns[self.settings.notna().any()])

    def differing(self) -> pd.DataFrame:
        """Return a frame of the settings in which the runs differ, with one column per setting.

        Settings that cannot change any result are left out. If a setting affects only some of the runs, the frame
        contains its configured value for all runs.
        """
        used = self.settings[varying(self.counted)]
        return used[varying(used)]

    def values(self, metric: str) -> pd.Series:
        """Return the value of ``metric`` for each finished run, as a series indexed by run.

        ``metric`` is a dotted key of the result. Runs without a value are left out.
        """
        return self.metrics.loc[self.metrics.metric == metric, "value"].dropna()

    def frame(self, per: Per = "run") -> pd.DataFrame:
        """Return all measured numbers as a tidy frame with one row per run and metric.

        Columns:

        - ``run_id``, ``folder``, ``task``, ``method``, ``seed``: the run
        - ``state``: ``done``, ``diverged``, ``failed``, ``damaged``, ``different data``, ``different version`` or
          ``unfinished``. A run that is not done has a single row, without ``metric`` and ``value``.
        - ``problem``: the reason why the run is not done
        - one column per setting in which the runs differ, named by dotted key such as ``training.lr``. The column is
          numeric if all values are numbers. Otherwise, the values are text as in config.yaml. The value is missing if a
          run lacks the setting.
        - ``metric``: the dotted key of a number in result.json, such as ``metrics.accuracy.ALL`` or ``seconds.total``
        - ``value``: the number, float64. Fractions are between 0 and 1. Times are in seconds. Null values are left out.

        Args:
            per: What the number in a row describes:

                - "run": a run. The number is from result.json.
                - "round": a round. The number, such as ``accuracy``, is from rounds.jsonl. There is a further column
                  ``round``.
                - "client": a client in a round. The number is an accuracy. There are further columns ``round`` and
                  ``client``. The metrics ``before`` and ``after`` are the accuracies before and after the client's
                  training. The metric ``accuracy`` is the accuracy at the end of the round.

        Raises:
            UserError: ``per`` is unknown, or a file is damaged.
        """
        texts = self.differing().drop(columns=list(_TOLD), errors="ignore")
        seeds = self.runs.seed.map(int)  # int64 instead of objects
        identified = self.runs[list(IDENTITY)].assign(seed=seeds).join(texts.apply(typed_column))
        numbers = self.metrics if per == "run" else _logged(self.runs.run, per)
        return identified.join(numbers.dropna()).reset_index(drop=True)


def _logged(runs: pd.Series, per: Per) -> pd.DataFrame:
    """Return a row per number in the rounds.jsonl of each finished run, indexed by run."""
    if per not in ("round", "client"):
        raise UserError("expected 'run', 'round' or 'client'", f"per={per}")
    rows: list[tuple[Any, ...]] = []
    for i, run in runs.items():
        if is_finished(run) and has_record(run.folder, run.result, ROUNDS_FILE):
            for row in rounds(run):
                measured = _numbers(row) if per == "round" else _of_clients(row)
                rows += [(i, row["round"], *numbers) for numbers in measured]
    return _long_frame(rows, [*dict.fromkeys(("round", per)), "metric", "value"])


def _long_frame(rows: Sequence[tuple[object, ...]], columns: Sequence[str]) -> pd.DataFrame:
    """Return ``rows`` of a run's number and the values of ``columns``, indexed by run."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["run", *columns])
    return frame.astype({"run": "int64", "value": "float64"}).set_index("run").rename_axis(None)


def _of_clients(row: LogRow) -> Iterator[tuple[int, str, float]]:
    """Yield (client, metric, value) for each client's number in one row of rounds.jsonl."""
    for client, value in enumerate(row.get("clients", ())):
        yield client, "accuracy", value
    for name in ("before", "after"):
        if name in row:
            for client, value in zip(row["participants"], row[name], strict=True):
                yield client, name, value


def selected_runs(out: Path, filters: Sequence[Filter], data: str | None = None) -> RunSet:
    """Return the runs of :func:`read_runs` that pass all ``filters``.

    The filter ``plugins=[FILE]`` does not restrict the runs, but loads the plug-in FILE. In the returned
    object, ``lines`` lists (1) plug-ins that are used by a run but not loaded, and (2) values in ``filters`` that no
    run has.

    Raises:
        UserError: A filter is invalid, a plug-in cannot be loaded, or no run passes all filters.
    """
    for condition in filters:
        if condition.key == "plugins":
            load_plugins([name.strip("'\" ") for value in condition.wanted for name in value.strip("[]").split(",")])
    runs, lines = select_runs(read_runs(out, data), [each for each in filters if each.key != "plugins"])
    used = sorted({plugin for run in runs.runs.run for plugin in run.setting("plugins") or ()})
    unloaded = [plugin for plugin in used if plugin.removesuffix(".py").rpartition("/")[2] not in sys.modules]
    if unloaded:
        lines.append(
            "Metrics of plug-ins that are not loaded have no title, unit or range. To load the plug-ins, add "
            f"plugins=[{','.join(unloaded)}]."
        )
    return replace(runs, lines=(*lines, *runs.lines), filters=" ".join(condition.text for condition in filters))


def read_runs(out: Path, data: str | None = None) -> RunSet:
    """Return all runs in the folders ``<task>/<method>/<run id>/`` below ``out``.

    Folders that cannot be read are left out. In the returned object, ``lines`` lists these folders.

    Args:
        out: The folder that contains the run folders.
        data: The folder of the current data. Results from other data are not used. None allows any data.

    Raises:
        UserError: ``out`` is missing or contains no run.
    """
    if not out.is_dir():
        raise UserError("not a folder. Use the folder that contains the runs", f"paths.output_dir={out}")
    jobs = []
    foreign = []
    current = provenance.CurrentData(data)
    for folder in sorted(out.glob("[!.]*/[!.]*/[!.]*")):
        if not any((folder / mark).exists() for mark in (CONFIG, "result.json", "failed.json")):
            continue  # artifacts and similar folders have other files
        try:
            jobs.append(_job(folder, current))
        except (ValueError, OSError, RecursionError) as problem:
            foreign.append(f"{folder.relative_to(out)} ({problem})")
    if not jobs:
        raise UserError(f"no runs found (looked for <task>/<method>/<run id>/config.yaml){name_few(foreign)}", out)
    lines = (f"Left out: {len(foreign)} folders without a valid run{name_few(foreign)}.",) if foreign else ()
    return replace(run_set(out, load_runs(jobs, files=[CONFIG])), lines=lines)


def run_set(out: Path, runs: Sequence[Run]) -> RunSet:
    """Return ``runs`` as a :class:`RunSet`. The run folders are below ``out``."""
    import pandas as pd

    counted = []
    settings = []
    numbers = []
    for i, run in enumerate(runs):
        counted.append(flatten_settings(counted_settings(run.config)))
        texts = flatten_settings(without(dict(run.config), "sweep", "report"))  # all keys that one can filter by
        texts |= {"run_id": run.run_id, "status": run.state}
        if run.result:
            texts["data"] = run.result.data
        settings.append(texts | counted[-1])
        if is_finished(run):
            for pair in _numbers(content_of(run.result)):
                numbers.append((i, *pair))
    metrics = _long_frame(numbers, ["metric", "value"])
    return RunSet(
        out, run_rows(runs), pd.DataFrame(settings, dtype=object), pd.DataFrame(counted, dtype=object), metrics
    )


def _job(folder: Path, data: provenance.CurrentData) -> Job:
    """Return the job of a run folder.

    Raises:
        ValueError: The config in ``folder`` belongs to another folder.
    """
    if not (folder / CONFIG).exists():
        began = "failed before writing its settings" if (folder / "failed.json").exists() else "no config.yaml"
        raise ValueError(began)
    try:
        config = read_config(folder / CONFIG)
    except ValueError as problem:
        raise ValueError(f"config.yaml {problem}") from None
    task = lookup(config, "task.name")
    method = lookup(config, "method.name")
    seed = config.get("seed")
    if not isinstance(task, str) or not isinstance(method, str) or type(seed) is not int:
        raise ValueError("config.yaml has no task.name, method.name or seed")
    if (task, method) != (folder.parent.parent.name, folder.parent.name):
        raise ValueError("config.yaml belongs to another task or method")
    try:
        counted_settings(config)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("config.yaml lacks settings") from None
    return Job(folder.name, folder, task, method, seed, "", config, data)


def _numbers(content: Config) -> Iterator[tuple[str, float | None]]:
    """Yield (dotted key, value) of the finite numbers and nulls of a result or a row of rounds.jsonl."""
    for name, value in leaves(content).items():
        measured = value is None or (type(value) in (int, float) and math.isfinite(value))
        if measured and name not in NO_MEASURES:
            yield name, value


def name_few(names: Sequence[str]) -> str:
    """Return a colon and the first few ``names``, such as ``: a; b; c and 2 more``. Without names, return ""."""
    return f": {first_few(names, _MAX_NAMED, '; ')}" if names else ""
