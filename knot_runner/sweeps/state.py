"""What a run's folder says of it, for whoever looks: finished, failed and why, or at work and how far.

``progress.json`` is replaced about once a second while a run is at work; ``failed.json`` stands until a later attempt
succeeds. Both work on a shared file system, without a server.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from knot_runner.config.strict import build
from knot_runner.records import read_result
from knot_runner.util.errors import UserError
from knot_runner.util.files import read_json, write_atomic, write_json
from knot_runner.util.processes import on_sigterm

#: user: a mistake in the input; disk: it is full; error: an exception; memory: out of it; killed: by a signal; exit:
#: the job's code left.
Kind = Literal["user", "disk", "error", "memory", "killed", "exit"]
#: What became of an attempt; busy: another process is at the same run; skipped: the sweep had ended.
SweepState = Literal["done", "diverged", "failed", "busy", "skipped"]
PROGRESS, FAILED, JOB_LOG = "progress.json", "failed.json", "log.txt"
#: Seconds between two progress files of one run, and after how many one is no longer believed.
HEARTBEAT_SECONDS, FRESH_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class Failure:
    """Why the last attempt at a run failed: one line; ``attempts``: how many failed in a row."""

    kind: Kind
    cause: str
    attempts: int
    at: float


@dataclass(frozen=True)
class JobProgress:
    """How far a run is: ``done`` of ``total`` of ``stage``, and what it last measured. ``at``: when (Unix time)."""

    stage: str
    done: int
    total: int
    text: str
    at: float
    host: str
    pid: int


def read_failure(folder: Path) -> Failure | None:
    """The last failure; None when there is none."""
    return _read(Failure, folder / FAILED)


def write_failure(folder: Path, kind: Kind, cause: str) -> Failure:
    """Record that an attempt failed, for this ``cause`` (its first line is kept)."""
    before = read_failure(folder)
    line = (cause.strip().splitlines() or [kind])[0]
    failure = Failure(kind, line, before.attempts + 1 if before else 1, time.time())
    write_json(folder / FAILED, asdict(failure))
    return failure


def clear_failure(folder: Path) -> None:
    """An attempt succeeded."""
    if (folder / FAILED).exists():  # on a read-only disk there is nothing to delete, and no way to try
        (folder / FAILED).unlink(missing_ok=True)


def read_progress(folder: Path) -> JobProgress | None:
    """How far the run in ``folder`` is; None when it is not at work (or has not said so for a minute)."""
    progress = _read(JobProgress, folder / PROGRESS)
    return progress if progress is not None and time.time() - progress.at < FRESH_SECONDS else None


def status(folder: Path) -> str | None:
    """``done``, ``diverged``, or None when there is no whole result yet."""
    result = read_result(folder)
    return result["status"] if result else None


class ProgressFile:
    """Writes ``progress.json`` of one run; a context manager that takes it away in the end."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS
        self._last = 0.0
        self._leaving = contextlib.ExitStack()

    def __enter__(self) -> ProgressFile:
        self.watch("begin", 0, 1, "")
        self._leaving.enter_context(on_sigterm(self._remove))
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.close()
        self._remove()

    def _remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def watch(self, stage: str, done: int, total: int, text: str) -> None:
        """As :data:`knot_runner.pipelines.context.Progress`; most calls do nothing."""
        now = time.time()
        if text == "done" or now - self._last < HEARTBEAT_SECONDS:
            return
        self._last = now
        progress = JobProgress(stage, done, total, text, now, socket.gethostname(), os.getpid())
        with contextlib.suppress(UserError):  # a full disk: the run itself will say so when it commits
            write_atomic(self._path, json.dumps(asdict(progress)), durable=False)


def _read(kind: type[Any], path: Path) -> Any | None:
    try:
        return build(kind, read_json(path), path.name)
    except UserError:  # not there, damaged, or another version's
        return None
