"""Deletes unneeded files that killed processes left below ``paths.out``, when the next command begins.

These are partly written files (``*.tmp``) of runs, stages and sweeps, and checkpoints of finished runs and stages. Each
folder is cleared under its lock, so that no running process loses a file.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path

from knot_runner.records import (
    PART_FILES,
    STATE_FILES,
    lock_of,
    lock_of_stage,
    lock_of_sweep,
    read_result,
    read_sealed,
)
from knot_runner.util.errors import UserError
from knot_runner.util.files import BusyError, locked

#: Patterns of files that are no longer needed once a run has its result, or a stage its ``info.json``.
OF_RUNS, OF_STAGES = {*STATE_FILES, PART_FILES, "progress.json"}, set(STATE_FILES)


def clear(out: Path) -> None:
    """Delete leftover files below ``out``. Folders locked by another process or read-only are left as they are."""
    stages = out / "artefacts"
    for folder in _below(out, 3):
        if folder.parts[len(out.parts)] != stages.name:
            _clear(folder, OF_RUNS, lock_of(str(out), folder.name), read_result)
    for folder in _below(stages, 2):
        lock = lock_of_stage(stages, folder.parent.name, folder.name)
        _clear(folder, OF_STAGES, lock, lambda folder: read_sealed(folder / "info.json"))
    for folder in _below(out / ".sweeps", 1):
        _clear(folder, set(), lock_of_sweep(folder), lambda _: None)


def _below(root: Path, depth: int) -> Sequence[Path]:
    """Folders ``depth`` levels below ``root``, without hidden ones."""
    return [path for path in root.glob("/".join(["[!.]*"] * depth)) if path.is_dir()]


def _clear(folder: Path, unneeded: set[str], lock: Path, finished: Callable[[Path], object]) -> None:
    """Delete the partly written files of ``folder`` and, if it is finished, those matching ``unneeded``."""
    with contextlib.suppress(OSError, BusyError, UserError):
        if not _named(folder, unneeded):
            return
        with locked(lock, wait=False):
            for path in _named(folder, unneeded if finished(folder) else set()):
                path.unlink(missing_ok=True)


def _named(folder: Path, names: set[str]) -> list[Path]:
    """Partly written files of ``folder`` and those matching one of the patterns ``names``; sorted, so that the record
    of a commit is deleted first."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".tmp" or _fits(path, names))


def _fits(path: Path, names: set[str]) -> bool:
    return any(fnmatch.fnmatchcase(path.name, name) for name in names)
