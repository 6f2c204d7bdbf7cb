"""Reads run folders and checks their records, so that no wrong number is used.

A ``result.json`` that is absent, truncated, altered, of another run or made from other data than the current
``paths.data_dir`` counts as missing; the reason is kept so that tables can name it. All other files of a run are read
by :func:`kept_file`, which checks them against the digests in ``result.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, TypeGuard, TypeVar

import numpy as np

from knot_runner import provenance
from knot_runner.records import RESULT_FILE, ROUNDS_FILE, OtherVersionError, has_record, read_record, require_result
from knot_runner.report.render.text import first_few
from knot_runner.results.base import RunResult
from knot_runner.results.training import StagesResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow

ResultT = TypeVar("ResultT", bound=RunResult, covariant=True)
RunT = TypeVar("RunT", bound="Run")
Status = Literal["done", "diverged", "missing", "corrupt", "other data", "other version"]
#: Status of runs whose result is not used -> its displayed name.
UNUSED = {"corrupt": "damaged", "other data": "other data", "other version": "other version"}
PREDICTIONS, VECTORS = "predictions.safetensors", "vectors.safetensors"
PROBE = "probe.json"
#: Tolerance for metrics recomputed from stored predictions: they are in float32, so ties may be broken differently.
RECOMPUTED_TOLERANCE = 2e-3


@dataclass(frozen=True)
class Job:
    """One run that a preset requests, done or not. ``method``: its name, or that of the preset's arm. ``label``:
    settings that distinguish it from the other runs of its method, as text ("task.labels.support=onehot"), or "".
    ``config``: its composed settings. ``data``: the current data files, which must match those of the run; None: no
    check."""

    run_id: str
    folder: Path
    task: str
    method: str
    seed: int
    label: str = ""
    config: Config = field(default_factory=dict, compare=False)
    data: provenance.CurrentData | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Run:
    """A job with the content of its folder; ``result`` is None unless done or diverged, with the reason in
    ``problem``."""

    job: Job
    status: Status
    problem: str = ""
    result: RunResult | None = None

    def metric(self, metric: str, dataset: str) -> float | None:
        """The student's value (fraction; label-space distance for sd) on ``dataset`` or ALL; None if not measured."""
        return self.result.metrics.get(metric, {}).get(dataset) if is_finished(self) else None


@dataclass(frozen=True)
class DoneRun(Run, Generic[ResultT]):
    """A run that is done, with its result as the class of its kind."""

    result: ResultT = field(kw_only=True)


MeasuredRun = DoneRun[RunResult]
StagesRun = DoneRun[StagesResult]


def is_finished(run: Run) -> TypeGuard[MeasuredRun]:
    """Return whether ``run`` is done, so that it has numbers to show."""
    return run.status == "done"


def finished(runs: Iterable[Run]) -> list[MeasuredRun]:
    """The finished ``runs``, which have numbers to show."""
    return [run for run in runs if is_finished(run)]


def finished_as(runs: Iterable[Run], kind: type[ResultT]) -> list[DoneRun[ResultT]]:
    """The finished ``runs`` with a result of the class ``kind``."""

    def fits(run: Run) -> TypeGuard[DoneRun[ResultT]]:
        return run.status == "done" and isinstance(run.result, kind)

    return [run for run in runs if fits(run)]


def load_runs(jobs: Iterable[Job]) -> list[Run]:
    """Load the runs of ``jobs``, in their order. Never raises; a run that cannot be used has the reason in
    ``problem``."""
    return [_load(job) for job in jobs]


def readable(jobs: Iterable[Job], names: Sequence[str] = (), command: str = "") -> list[Run]:
    """As :func:`load_runs`; finished runs with a missing or damaged file among ``names`` count as damaged.

    Raises :class:`UserError`, naming the ``command`` that runs them, if none is finished.
    """
    runs = [with_files(run, names, command) for run in load_runs(jobs)]
    if not any(run.status == "done" for run in runs):
        raise nothing_there(runs, command)
    return runs


def with_files(run: Run, names: Sequence[str], command: str = "") -> Run:
    """``run``, marked as damaged if it is finished and one of the files ``names`` is missing or damaged. Whether its
    kind of run has such a file is left to the caller."""
    if is_finished(run):
        own = [name for name in names if has_record(run.job.folder, run.result, name)]
        try:
            for name in own:
                kept_file(run, name, command)
        except UserError as problem:
            return Run(run.job, "corrupt", str(problem))
    return run


def nothing_there(runs: list[Run], command: str = "") -> UserError:
    """The error that none of ``runs`` is finished, with the reasons if known."""
    reasons = dict.fromkeys(run.problem for run in runs if run.status in (*UNUSED, "diverged"))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    what = "the run is not" if len(runs) == 1 else f"none of the {len(runs)} runs is"
    command = command_for(runs, command)
    return UserError(f"{what} finished{why}", hint=f"Run: {command}" if command else "")


def command_for(runs: list[Run], command: str) -> str:
    """``command`` as it must be typed to run those of ``runs`` that have no result that counts; "" if all have."""
    states = {run.status for run in runs} - {"done", "diverged"}
    if not command or not states:
        return ""
    return f"{command} --stale=rerun" if states & {"corrupt", "other data"} else command


def predictions(run: Run, command: str = "") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Test predictions by data set: probabilities [N, C] float32 and labels [N] int64.

    ``before/<data set>`` holds those of the global model before distillation, with the same labels. Raises
    :class:`UserError` naming the file when it is absent or damaged.
    """
    stored = arrays(run, PREDICTIONS, command)
    found = {}
    for name in (key.removesuffix(".probabilities") for key in stored if key.endswith(".probabilities")):
        shares = stored[f"{name}.probabilities"]
        own, after = f"{name}.labels", f"{name.removeprefix('before/')}.labels"
        labels = stored[own if own in stored else after]
        found[name] = (shares, labels)
    return found


def cls_vectors(run: Run, command: str = "") -> tuple[np.ndarray, np.ndarray]:
    """[CLS] vectors [M, H] float32 of a sample of the global test set, and their labels [M] int64.

    Raises :class:`UserError` naming the file when it is absent or damaged.
    """
    stored = arrays(run, VECTORS, command)
    return stored["vectors"], stored["labels"]


def rounds(run: Run, command: str = "") -> list[LogRow]:
    """The log rows of ``rounds.jsonl`` of a federated run, one per round from 1; rows of rounds without evaluation have
    no accuracy.

    Raises :class:`UserError` naming the file when it is absent, truncated or damaged.
    """
    return [json.loads(line) for line in kept_file(run, ROUNDS_FILE, command).splitlines()]


def probes(run: Run, command: str = "") -> list[Facts]:
    """Entries of ``probe.json``: probe, template, words, model, and one row of probabilities per word.

    Raises :class:`UserError` naming the file when it is absent or damaged.
    """
    entries: list[Facts] = json.loads(kept_file(run, PROBE, command))
    return entries


def _load(job: Job) -> Run:
    path = job.folder / RESULT_FILE
    if not path.exists():
        return Run(job, "missing", "not run yet")
    try:
        result = require_result(job.folder)
    except OtherVersionError as problem:
        return Run(job, "other version", str(problem))
    except UserError as problem:
        return Run(job, "corrupt", str(problem))
    changes = job.data.changes(job.folder, result) if job.data else []
    if changes and changes[0].startswith(provenance.FILE_CHANGE):
        return Run(job, "corrupt", f"{job.folder}/{changes[0].removeprefix(provenance.FILE_CHANGE)}")
    if changes:
        return Run(job, "other data", f"{path} is of other data than paths.data_dir has ({first_few(changes, 1)})")
    if result.status == "diverged":
        return Run(job, "diverged", "diverged", result)
    return DoneRun(job, "done", result=result)


def kept_file(run: Run, name: str, command: str = "") -> bytes:
    """The bytes of file ``name`` of a finished run. Raises :class:`UserError` naming it if it is absent or does not
    match the digest in the run's result, and if such runs keep no such file."""
    if run.result is None or not has_record(run.job.folder, run.result, name):
        raise UserError(f"runs with these settings keep no {name}", run.job.folder)
    try:
        return read_record(run.job.folder, run.result, name)
    except UserError as problem:
        hint = f"Run: {command} --stale=rerun" if command else "Repeat its command with --stale=rerun"
        raise UserError(str(problem), hint=hint) from None


def arrays(run: Run, name: str, command: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file of a run. Raises :class:`UserError` naming it when it is absent or damaged."""
    from safetensors.numpy import load

    return load(kept_file(run, name, command))
