"""Reading of run folders. All records are checked, so that no wrong number is used.

A ``result.json`` counts as missing if it is absent, truncated, changed, from another run, or computed from other data
than the current ``paths.data_dir``. The reason is recorded, so that tables can report it. :func:`kept_file` reads all
other files of a run, and checks them against the digests in ``result.json``.
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
    """One run that a preset requests, finished or not.

    Attributes:
        method: The name of the method, or the name of the preset's arm.
        label: The settings that distinguish the run from other runs of the same method, as text
            ("task.labels.support=onehot"), or "".
        config: The composed settings of the run.
        data: The current data files. A run with other data files is not used; None disables this check.
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
        """Return the value of the setting with the dotted ``key``, or None."""
        return lookup(self.config, key)

    def has(self, wanted: Config) -> bool:
        """Return whether the job has all settings of ``wanted``.

        ``wanted`` maps a dotted key to a value or a list of accepted values.
        """
        for key, values in wanted.items():
            if self.setting(key) not in (values if isinstance(values, list) else [values]):
                return False
        return True


@dataclass(frozen=True)
class Run(Job):
    """A job with the content of the job's folder.

    ``result`` is None unless the run is done or diverged. ``problem`` is the reason why the result is missing or not
    used. ``command`` is the command that runs the job, for messages.
    """

    status: Status = "missing"
    problem: str = ""
    result: RunResult | None = None
    command: str = field(default="", compare=False)

    @property
    def state(self) -> str:
        """Return the displayed status: ``status``, or "failed" or "unfinished" if the result is missing."""
        if self.status == "missing":
            return "failed" if (self.folder / "failed.json").is_file() else "unfinished"
        return self.status

    def metric(self, metric: str, dataset: str) -> float | None:
        """Return the student's ``metric`` on ``dataset`` (or ALL), or None if the run has no such value.

        The value is a fraction or, for sd (semantic distance), a distance between labels.
        """
        return self.result.metrics.get(metric, {}).get(dataset) if is_finished(self) else None


@dataclass(frozen=True)
class DoneRun(Run, Generic[ResultT]):
    """A finished run. The class of ``result`` matches the kind of the run."""

    result: ResultT = field(kw_only=True)


MeasuredRun = DoneRun[RunResult]
StagesRun = DoneRun[StagesResult]


def is_finished(run: Run) -> TypeGuard[MeasuredRun]:
    """Return whether ``run`` is finished and thus has numbers."""
    return run.status == "done"


def finished(runs: Iterable[Run]) -> list[MeasuredRun]:
    """Return those of ``runs`` that are finished."""
    return [run for run in runs if is_finished(run)]


def load_runs(jobs: Iterable[Job], command: str = "", files: Sequence[str] = ()) -> list[Run]:
    """Load the runs of ``jobs``, in the order of ``jobs``.

    No error is raised: a run that cannot be used has the reason in ``problem``.

    Args:
        jobs: The jobs whose runs are loaded.
        command: The command that runs the jobs.
        files: Files that are checked by :func:`with_files`.
    """
    runs = []
    for job in jobs:
        status, problem, result = _record(job)
        kind: type[Run] = DoneRun if status == "done" else Run
        run = kind(**vars(job), status=status, problem=problem, result=result, command=command)
        runs.append(with_files(run, files))
    return runs


def readable(jobs: Iterable[Job], names: Sequence[str] = (), command: str = "") -> list[Run]:
    """Load runs with :func:`load_runs`, and also check each run's files ``names``.

    Raises:
        UserError: No run is finished. The message names the ``command`` that runs the jobs.
    """
    runs = load_runs(jobs, command, names)
    if not finished(runs):
        raise nothing_there(runs)
    return runs


def with_files(run: Run, names: Sequence[str]) -> Run:
    """Return ``run``, marked as damaged if it is finished and one of the files ``names`` is missing or damaged.

    Files that runs of this kind do not save are not checked.
    """
    try:
        for name in names:
            if is_finished(run) and has_record(run.folder, run.result, name):
                kept_file(run, name)
    except UserError as problem:
        return replace(run, status="damaged", problem=str(problem), result=None)
    return run


def require_results(runs: Sequence[Run]) -> None:
    """Raise :func:`nothing_there` if none of ``runs`` is done or diverged."""
    if not any(run.result for run in runs):
        raise nothing_there(runs)


def nothing_there(runs: Sequence[Run]) -> UserError:
    """Return the error for ``runs`` without any finished run, with the reasons if known."""
    what = "the run is not finished" if len(runs) == 1 else f"none of the {len(runs)} runs is finished"
    reasons = dict.fromkeys(run.problem for run in runs if run.status in (*UNUSED, "diverged"))
    if reasons:
        what += f" ({'; '.join(reasons)})"
    command = command_for(runs)
    return UserError(what, hint=f"Run: {command}" if command else "")


def command_for(runs: Sequence[Run]) -> str:
    """Return the command that runs the jobs; "" if all ``runs`` have a valid result."""
    states = {run.status for run in runs} - {"done", "diverged"}
    if not states or not runs[0].command:
        return ""
    return f"{runs[0].command} --stale=rerun" if states & {"damaged", "different data"} else runs[0].command


def lookup(values: Config | RunResult | None, key: str) -> Any:
    """Return the value at a dotted ``key`` in settings or in a result, or None."""
    node: Any = values
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)
    return node


def predictions(run: Run, side: ModelSide = "after") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return test predictions by data set: probabilities of shape [N, C], float32, and labels of shape [N], int64.

    ``side`` selects the run's models, or the global model before distillation.

    Raises:
        UserError: The file is missing or damaged.
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
    """Return the log rows in ``rounds.jsonl`` of a federated run, one per round, counted from 1.

    Rows of rounds without evaluation have no accuracy.

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
    """Return the bytes of file ``name`` of a finished run.

    Raises:
        UserError: The file is missing, does not match its digest in the run's result, or is never stored by runs of
            this kind. The message names the command that repeats the run.
    """
    if run.result is None or not has_record(run.folder, run.result, name):
        raise UserError(f"runs with these settings do not save {name}", run.folder)
    try:
        return read_record(run.folder, run.result, name)
    except UserError as problem:
        hint = f"Run: {run.command} --stale=rerun" if run.command else "Repeat its command with --stale=rerun"
        raise UserError(str(problem), hint=hint) from None


def arrays(run: Run, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a safetensors file of a run.

    Raises:
        UserError: The file is missing or damaged.
    """
    from safetensors.numpy import load

    return load(kept_file(run, name))
