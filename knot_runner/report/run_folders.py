"""Reading and checking of run folders.

A ``result.json`` is used only if it is complete and unchanged, belongs to the run, and was computed from the current
data in ``paths.data_dir``. Otherwise, the attribute ``problem`` of the run states the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeGuard, TypeVar

import numpy as np

from knot_runner import provenance
from knot_runner.records import RESULT_FILE, ROUNDS_FILE, OtherVersionError, has_record, read_record, require_result
from knot_runner.report.render.text import first_few
from knot_runner.results import RunResult
from knot_runner.results.training import StagesResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow

ResultT = TypeVar("ResultT", bound=RunResult, covariant=True)
RunT = TypeVar("RunT", bound="Run")
Status = Literal["done", "diverged", "missing", "damaged", "different data", "different version"]
#: Statuses of runs whose result exists but is not used.
UNUSED = ("damaged", "different data", "different version")
#: The models of a run: ``after`` training or distillation, or the global model ``before`` distillation.
ModelSide = Literal["after", "before"]
#: Models -> the field of a result with their metrics.
SCORES: dict[ModelSide, str] = {"after": "metrics", "before": "before"}
#: The problem of a run whose result is missing.
NOT_RUN = "not run yet"
PREDICTIONS = "predictions.safetensors"
VECTORS = "vectors.safetensors"
PROBE = "probe.json"


@dataclass(frozen=True)
class Job:
    """A finished or unfinished run that a preset requests.

    Attributes:
        method: The name of the method, or the name of the arm if the preset has arms (named sets of overrides).
        label: The settings that distinguish the run from other runs of the same method, such as
            "task.labels.support=onehot"; "" if there are none.
        config: All settings of the run.
        data: The current data. A result from other data is not used. None allows any data.
    """

    run_id: str
    folder: Path
    task: str
    method: str
    seed: int
    label: str = ""
    config: Config = field(default_factory=dict, compare=False)
    data: provenance.CurrentData | None = field(default=None, compare=False)

    def setting(self, key: str) -> Any:
        """Return the value of the setting with the dotted key ``key``; None if the job does not have this setting."""
        return lookup(self.config, key)

    def has(self, wanted: Config) -> bool:
        """Return whether the job has all settings in ``wanted``.

        ``wanted`` maps a dotted key to a value or to a list of accepted values.
        """
        for key, values in wanted.items():
            if self.setting(key) not in (values if isinstance(values, list) else [values]):
                return False
        return True


@dataclass(frozen=True)
class Run(Job):
    """A job together with its result, if there is one.

    Attributes:
        status: The status of the result, such as "done", "diverged" or "missing".
        problem: A text that states why the run does not count as finished; "" for a finished run.
        result: The result of a run that is done or diverged; otherwise None.
        command: The command that runs the job, as shown in messages.
    """

    status: Status = "missing"
    problem: str = ""
    result: RunResult | None = None
    command: str = field(default="", compare=False)

    @property
    def state(self) -> str:
        """Return the state to display: "failed" or "unfinished" if the result is missing, otherwise ``status``."""
        if self.status == "missing":
            return "failed" if (self.folder / "failed.json").is_file() else "unfinished"
        return self.status

    def metric(self, metric: str, dataset: str) -> float | None:
        """Return the value of a metric for the trained model; None if the run has no such value.

        Most metrics are fractions, but the semantic distance ``sd`` is not.

        Args:
            metric: The name of the metric.
            dataset: The name of a data set, or ALL for all data sets.
        """
        return self.result.metrics.get(metric, {}).get(dataset) if is_finished(self) else None


@dataclass(frozen=True)
class DoneRun(Run, Generic[ResultT]):
    """A finished run. The class of ``result`` matches the kind of the run."""

    result: ResultT = field(kw_only=True)


MeasuredRun = DoneRun[RunResult]
StagesRun = DoneRun[StagesResult]


def is_finished(run: Run) -> TypeGuard[MeasuredRun]:
    """Return whether the status of ``run`` is "done"."""
    return run.status == "done"


def finished(runs: Iterable[Run]) -> list[MeasuredRun]:
    """Return the finished runs among ``runs``."""
    return [run for run in runs if is_finished(run)]


def load_runs(jobs: Iterable[Job], command: str = "", files: Sequence[str] = ()) -> list[Run]:
    """Return a run for each of ``jobs``, in the same order. Each run contains its result.

    If a result cannot be used, no error is raised. Instead, the attribute ``problem`` of the run states the reason.

    Args:
        jobs: The jobs whose results are read.
        command: The command that runs the jobs, for messages.
        files: Names of the files to check in each run folder in addition to ``result.json``, see :func:`with_files`.
    """
    runs = []
    for job in jobs:
        status, problem, result = _record(job)
        kind: type[Run] = DoneRun if status == "done" else Run
        run = kind(**vars(job), status=status, problem=problem, result=result, command=command)
        runs.append(with_files(run, files))
    return runs


def readable(jobs: Iterable[Job], names: Sequence[str] = (), command: str = "") -> list[Run]:
    """Return a run for each of ``jobs``, finished or not, as :func:`load_runs` does.

    ``names`` are the names of the files to check in each run folder in addition to ``result.json``.

    Raises:
        UserError: No run is finished.
    """
    runs = load_runs(jobs, command, names)
    if not finished(runs):
        raise nothing_there(runs)
    return runs


def with_files(run: Run, names: Sequence[str]) -> Run:
    """Check the files with the given ``names`` in the folder of a run, and return the run.

    If a file that a finished run saved is now missing or damaged, the returned run has the status "damaged". A file
    that the run never saved is not checked.
    """
    try:
        for name in names:
            if is_finished(run) and has_record(run.folder, run.result, name):
                kept_file(run, name)
    except UserError as problem:
        return replace(run, status="damaged", problem=str(problem), result=None)
    return run


def require_results(runs: Sequence[Run]) -> None:
    """Check that at least one run is done or diverged.

    Raises:
        UserError: No run is done or diverged.
    """
    if not any(run.result for run in runs):
        raise nothing_there(runs)


def nothing_there(runs: Sequence[Run]) -> UserError:
    """Return the error to raise if none of ``runs`` is finished. The message lists the known problems of the runs."""
    what = "the run is not finished" if len(runs) == 1 else f"none of the {len(runs)} runs is finished"
    reasons = dict.fromkeys(run.problem for run in runs if run.status in (*UNUSED, "diverged"))
    if reasons:
        what += f". Cause: {'; '.join(reasons)}"
    command = command_for(runs)
    return UserError(what, hint=f"Run this command: {command}" if command else "")


def command_for(runs: Sequence[Run]) -> str:
    """Return the command that computes a result for each of the ``runs`` without a valid result.

    Return "" if all results are valid, or if the command is unknown.
    """
    states = {run.status for run in runs} - {"done", "diverged"}
    if not states or not runs[0].command:
        return ""
    return f"{runs[0].command} --stale=rerun" if states & {"damaged", "different data"} else runs[0].command


def lookup(values: Config | RunResult | None, key: str) -> Any:
    """Return the value at a dotted key in settings or in a result; None if there is no such key."""
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    return node


def predictions(run: Run, side: ModelSide = "after") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the stored predictions of a run, as a dict from the name of a test set to two arrays.

    For N examples and C classes, the first array contains the predicted probabilities (float32, shape [N, C]). The
    second array contains the true labels (int64, shape [N]). If ``side`` is "before", the predictions are those of
    the global model before distillation.

    Raises:
        UserError: The file of predictions is missing or damaged.
    """
    stored = arrays(run, PREDICTIONS)
    prefix = "before/" if side == "before" else ""
    by_data = {}
    for key, labels in stored.items():
        name, _, kind = key.rpartition(".")
        shares = stored.get(f"{prefix}{name}.probabilities")
        if kind == "labels" and shares is not None:
            by_data[name] = (shares, labels)  # the same labels before and after distillation
    return by_data


def rounds(run: Run) -> list[LogRow]:
    """Return the rows of the file ``rounds.jsonl`` of a federated run, one row per round.

    A row has no accuracy if the model was not evaluated in this round.

    Raises:
        UserError: The file is missing, truncated or damaged.
    """
    return [json.loads(line) for line in kept_file(run, ROUNDS_FILE).splitlines()]


def _record(job: Job) -> tuple[Status, str, RunResult | None]:
    """Return the status of the job's run, the reason why there are no numbers or "", and the result."""
    path = job.folder / RESULT_FILE
    if not path.exists():
        return "missing", NOT_RUN, None
    try:
        result = require_result(job.folder)
    except OtherVersionError as problem:
        return "different version", str(problem), None
    except UserError as problem:
        return "damaged", str(problem), None
    changes = job.data.changes(job.folder, result) if job.data else []
    if changes and changes[0].startswith(provenance.FILE_CHANGE):
        return "damaged", f"{job.folder}/{changes[0].removeprefix(provenance.FILE_CHANGE)}", None
    if changes:
        return "different data", f"{path} used data that differ from paths.data_dir ({first_few(changes, 1)})", None
    return result.status, "diverged" if result.status == "diverged" else "", result


def kept_file(run: Run, name: str) -> bytes:
    """Return the content of the file ``name`` in the folder of a finished run.

    Raises:
        UserError: The file is missing or damaged, or the run never saved this file.
    """
    if run.result is None or not has_record(run.folder, run.result, name):
        raise UserError(f"{name} is required, but runs with these settings do not save this file", run.folder)
    try:
        return read_record(run.folder, run.result, name)
    except UserError as problem:
        hint = (
            f"Run this command: {run.command} --stale=rerun"
            if run.command
            else "Repeat the run's command with --stale=rerun"
        )
        raise UserError(str(problem), hint=hint) from None


def arrays(run: Run, name: str) -> dict[str, np.ndarray]:
    """Return the arrays in the safetensors file ``name`` of a run, as a dict from key to array.

    Raises:
        UserError: The file is missing or damaged.
    """
    from safetensors.numpy import load

    return load(kept_file(run, name))
