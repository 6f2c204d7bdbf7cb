"""Run folders as pandas frames, from their records only: settings, state and every measured number."""

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
    """Runs below the folder ``out`` as frames with a common index: the run's number, in the order of the folders.

    ``runs``: one row per run, as returned by :func:`run_rows`.

    ``settings``: one row per run and one column per dotted key. Values are text as in ``written``, and NaN if a run
    lacks the setting. The columns also include every other key that filters accept: hardware, paths, status, run_id,
    data.

    ``counted``: ``settings``, restricted to the settings that can change the run's numbers.

    ``metrics``: one row per number in the result of each finished run. ``metric`` is the dotted key in the result
    (``metrics.accuracy.ALL``), and ``value`` is the number, missing for null.

    ``lines``: the folders that are left out, with reasons.

    ``filters``: the filters that selected the runs, as typed by the user.
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
        """Return the runs with all settings of ``wanted``.

        ``wanted`` maps a dotted key to a value or a list of accepted values. A setting that a run lacks counts as null.
        """
        fitting = self.runs.run.notna()
        for key, value in wanted.items():
            values = value if isinstance(value, list) else [value]
            fitting &= self.settings[key].fillna(written(None)).isin(map(written, values))
        return self.only(fitting)

    def grouped(self, keys: Sequence[str]) -> RunSet:
        """Return the runs with an added column ``row``, the table row of each run (see :func:`row_numbers`)."""
        return replace(self, runs=self.runs.assign(row=row_numbers(self.settings, keys)))

    @property
    def finished(self) -> RunSet:
        """Return the finished runs."""
        return self.only(self.runs.state == "done")

    def keys(self) -> list[str]:
        """Return every dotted key of ``settings`` that some run has."""
        return list(self.settings.columns[self.settings.notna().any()])

    def differing(self) -> pd.DataFrame:
        """Return the settings in which the runs differ.

        Configured values are compared even if a run does not use a setting (for instance, the number of clusters
        without clustering).
        """
        used = self.settings[varying(self.counted)]
        return used[varying(used)]

    def values(self, metric: str) -> pd.Series:
        """Return the values of ``metric`` (dotted key) of the finished runs with this metric, indexed by run."""
        return self.metrics.loc[self.metrics.metric == metric, "value"].dropna()

    def frame(self, per: Per = "run") -> pd.DataFrame:
        """Return the tidy frame: one row per run and metric.

        Columns:

        - ``run_id``, ``folder``, ``task``, ``method``, ``seed``: the run
        - ``state``: ``done``; or ``diverged``, ``failed``, ``damaged``, ``different data`` or ``unfinished``, with the
          reason in ``problem``. A run that is not done has one row, whose ``metric`` and ``value`` are missing.
        - one column per setting in which the runs differ, by dotted key (``training.lr``): numbers if all values are
          numbers, otherwise text as in config.yaml; missing if a run lacks the setting
        - ``metric``: dotted key of a number in result.json, such as ``metrics.accuracy.ALL`` or ``seconds.total``
        - ``value``: the number, float64 (a share is between 0 and 1; times are in seconds). Nulls have no row.

        Args:
            per: "round" for the numbers of each row of rounds.jsonl (``accuracy``, ``train_loss``). "client" for
                each client's accuracies in rounds.jsonl: ``before`` and ``after`` the client's training, and
                ``accuracy``, after the round. The columns ``round`` and ``client`` identify the numbers.

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
        raise UserError("expected run, round or client", f"per={per}")
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
    """Return the runs of :func:`read_runs` that pass ``filters``. ``plugins=[FILE]`` is no filter, but loads plug-ins.

    Filters are written as in ``knot-runner compare`` (``task=femnist``, ``seed=0,1``, ``training.lr<0.1``).
    The attribute ``lines`` of the result also lists values in filters that no run has, and plug-ins of the runs that
    are not loaded. Code that a run folder names is never executed.

    Raises:
        UserError: A filter is wrong, a plug-in cannot be loaded, or no run passes.
    """
    for condition in filters:
        if condition.key == "plugins":
            load_plugins([name.strip("'\" ") for value in condition.wanted for name in value.strip("[]").split(",")])
    runs, lines = select_runs(read_runs(out, data), [each for each in filters if each.key != "plugins"])
    used = sorted({plugin for run in runs.runs.run for plugin in run.setting("plugins") or ()})
    unloaded = [plugin for plugin in used if plugin.removesuffix(".py").rpartition("/")[2] not in sys.modules]
    if unloaded:
        lines.append(
            f"Metrics of plug-ins have no title, unit or range. To load them, add plugins=[{','.join(unloaded)}]."
        )
    return replace(runs, lines=(*lines, *runs.lines), filters=" ".join(condition.text for condition in filters))


def read_runs(out: Path, data: str | None = None) -> RunSet:
    """Read every run below ``out`` (``<task>/<method>/<run id>/``). Unreadable folders are listed in ``lines``.

    ``data`` is a data folder; runs whose data files differ from the files in this folder are left out.

    Raises:
        UserError: ``out`` is missing or has no run.
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
        raise UserError(f"no runs found (<task>/<method>/<run id>/config.yaml){name_few(foreign)}", out)
    lines = (f"Left out: {len(foreign)} folders without a valid run{name_few(foreign)}.",) if foreign else ()
    return replace(run_set(out, load_runs(jobs, files=[CONFIG])), lines=lines)


def run_set(out: Path, runs: Sequence[Run]) -> RunSet:
    """Return the ``runs`` below ``out`` as frames."""
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
    """Return a colon, the first few of ``names`` and the number of remaining names; "" without names."""
    return f": {first_few(names, _MAX_NAMED, '; ')}" if names else ""
