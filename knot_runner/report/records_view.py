"""Reading run folders: what is there, what is not, and never a wrong number.

A ``result.json`` that is absent, cut short, altered beyond JSON, or that belongs to another run counts as not there,
and the reason is kept so that tables can name it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from knot_runner.errors import UserError
from knot_runner.records import intact
from knot_runner.report import sound

Status = Literal["done", "diverged", "missing", "corrupt"]
#: A result is some kilobytes; a file this long is not one.
LONGEST_RESULT = 10_000_000


@dataclass(frozen=True)
class Job:
    """One run that a preset asks for, whether or not it has been made. ``label``: settings that set it apart from
    the other runs of its method, as text ("task.labels.support=onehot"), or "". ``config``: its composed settings."""

    run_id: str
    folder: Path
    task: str
    method: str
    seed: int
    label: str = ""
    config: dict[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Run:
    """A job and what its folder holds; ``result`` is empty unless done or diverged, ``problem`` says why."""

    job: Job
    status: Status
    problem: str = ""
    result: dict[str, Any] = field(default_factory=dict)

    def metric(self, metric: str, dataset: str) -> float | None:
        """The student's value (fraction; label-space distance for sd) on ``dataset`` or ALL; None if not measured."""
        return self.result.get("metrics", {}).get(metric, {}).get(dataset) if self.status == "done" else None


def load(jobs: Iterable[Job]) -> list[Run]:
    """The runs of ``jobs``, in their order; nothing raises, a run that cannot be used has its reason in ``problem``."""
    return [_load(job) for job in jobs]


def done(jobs: Iterable[Job], command: str = "") -> list[Run]:
    """The finished runs among ``jobs``.

    Raises :class:`UserError` when there are none, with the ``command`` that makes them.
    """
    runs = load(jobs)
    finished = [run for run in runs if run.status == "done"]
    if not finished:
        raise nothing_there(runs, command)
    return finished


def nothing_there(runs: list[Run], command: str = "") -> UserError:
    """The error that says that none of ``runs`` is finished, and why where there is a reason."""
    reasons = dict.fromkeys(run.problem for run in runs if run.status in ("corrupt", "diverged"))
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return UserError(f"none of the {len(runs)} runs is there{why}{_make_with(command)}")


def predictions(run: Run, command: str = "") -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Test predictions by data set: probabilities [N, C] float32 and labels [N] int64.

    ``before/<data set>`` holds those of the global model before distillation, with the same labels. Raises
    :class:`UserError` naming the file when it is absent or damaged.
    """
    path = run.job.folder / "predictions.safetensors"
    kept = arrays(path, command)
    classes = len(run.result["labels"]["names"])
    found = {}
    for key in kept:
        name, _, kind = key.rpartition(".")
        if kind != "probabilities":
            continue
        labels = kept.get(f"{name}.labels", kept.get(f"{name.removeprefix('before/')}.labels"))
        if labels is None or not _fits(kept[key], labels, classes):
            damaged(path, command)
        found[name] = (kept[key], labels)
    if not found:
        damaged(path, command)
    return found


def vectors(run: Run, command: str = "") -> tuple[np.ndarray, np.ndarray]:
    """[CLS] vectors [M, H] float32 of a sample of the global test set, and their labels [M] int64.

    Raises :class:`UserError` naming the file when it is absent or damaged.
    """
    path = run.job.folder / "vectors.safetensors"
    kept = arrays(path, command)
    if {"vectors", "labels"} - set(kept):
        damaged(path, command)
    points, labels = kept["vectors"], kept["labels"]
    if points.ndim != 2 or not np.isfinite(points).all() or not _are_labels(labels, points, run):
        damaged(path, command)
    return points, labels


def rounds(run: Run, command: str = "") -> list[dict[str, Any]]:
    """The rows of ``rounds.jsonl`` of a federated run, one per round from 0; those of rounds that were not measured
    have no accuracy.

    Raises :class:`UserError` naming the file when it is absent, cut short or damaged.
    """
    path = run.job.folder / "rounds.jsonl"
    if not path.is_file():
        raise UserError(f"{path}: is not there" + _make_with(command))
    try:
        *lines, rest = path.read_text(encoding="utf-8").split("\n")
        rows = [_parsed(line) for line in lines]
    except (ValueError, OSError, RecursionError):
        damaged(path, command)
    whole = not rest and len(rows) == run.result.get("rounds", len(rows)) > 0
    if not whole or not all(sound.is_round(row, i) for i, row in enumerate(rows)) or "accuracy" not in rows[-1]:
        damaged(path, command)
    return rows


def probes(run: Run, command: str = "") -> list[dict[str, Any]]:
    """Entries of ``probe.json``: probe, template, words, model, and one row of probabilities per word.

    Raises :class:`UserError` naming the file when it is absent or damaged.
    """
    path = run.job.folder / "probe.json"
    try:
        entries = _strict_json(path)
        for entry in entries:
            rows = np.asarray(entry["probabilities"], dtype=float)
            right = rows.shape == (len(entry["words"]), len(run.result["labels"]["names"])) and np.isfinite(rows).all()
            if not right or not isinstance(entry["probe"], str) or not isinstance(entry["model"], str):
                damaged(path, command)
    except FileNotFoundError:
        raise UserError(f"{path}: is not there" + _make_with(command)) from None
    except (ValueError, TypeError, KeyError, OSError, RecursionError):
        damaged(path, command)
    return entries


def _load(job: Job) -> Run:
    path = job.folder / "result.json"
    try:
        result = _strict_json(path)
    except FileNotFoundError:
        return Run(job, "missing", "not run yet")
    except (ValueError, OSError, RecursionError) as problem:
        return Run(job, "corrupt", f"{path} cannot be read ({type(problem).__name__})")
    wrong = sound.problem(result, job.task, job.method, job.seed)
    if not wrong and not intact(result):
        wrong = "does not match its digest"
    if wrong:
        return Run(job, "corrupt", f"{path} {wrong}")
    return Run(job, result["status"], "diverged" if result["status"] == "diverged" else "", result)


def _strict_json(path: Path) -> Any:
    if path.stat().st_size > LONGEST_RESULT:
        raise ValueError("too long")
    return _parsed(path.read_text(encoding="utf-8"))


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_no_repeats)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key repeats")
    return made


def arrays(path: Path, command: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file of a run. Raises :class:`UserError` naming it when it is absent or damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.is_file():
        raise UserError(f"{path}: is not there" + _make_with(command))
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError):
        damaged(path, command)


def _fits(probabilities: np.ndarray, labels: np.ndarray, classes: int) -> bool:
    if probabilities.ndim != 2 or probabilities.shape != (len(labels), classes) or not len(labels):
        return False
    sums_to_one = np.allclose(probabilities.sum(1), 1, atol=1e-3)  # false for NaN, too
    return bool(sums_to_one and probabilities.min() >= 0 and labels.min() >= 0 and labels.max() < classes)


def _are_labels(labels: np.ndarray, points: np.ndarray, run: Run) -> bool:
    count = len(run.result["labels"]["names"])
    return labels.shape == (len(points),) and bool(len(labels)) and labels.min() >= 0 and labels.max() < count


def damaged(path: Path, command: str) -> NoReturn:
    """Raises :class:`UserError`: ``path`` cannot be used, and what to do."""
    raise UserError(f"{path}: is damaged; delete its folder" + (f" and repeat: {command}" if command else ""))


def _make_with(command: str) -> str:
    return f"; make it with: {command}" if command else ""
