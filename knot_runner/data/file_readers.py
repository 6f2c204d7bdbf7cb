"""Large files of one kind, read by worker processes: one file at a time each, with results in the files' order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from knot_runner.util.errors import UserError
from knot_runner.util.task_pool import TaskPool
from knot_runner.util.workers import Handler, Send

#: Files of fewer bytes in all, some four seconds of reading, are read by this process: others take as long to start.
SHARED_FROM = 200_000_000


@dataclass(frozen=True)
class FileReaders:
    """``workers``: processes that may read files, after the imports ``preloaded`` (util/processes.py)."""

    workers: int = 1
    preloaded: tuple[str, ...] = ()


#: What a task is read with where nobody says otherwise: this process alone.
ALONE = FileReaders()


def read_files(read: Callable[[Path], Any], paths: list[Path], readers: FileReaders) -> Iterator[Any]:
    """``read(path)`` of each of ``paths``, in their order, whichever process finds it.

    ``read`` and its results must pickle; arrays are fastest. An error is raised at its file's position, after the
    results of earlier files. Raises :class:`UserError` naming ``hardware.workers`` where a process died or none could
    be started.
    """
    workers = min(readers.workers, len(paths))
    if workers < 2 or sum(map(_size, paths)) < SHARED_FROM:
        yield from map(read, paths)
        return
    try:
        pool = TaskPool(workers, list(readers.preloaded), _prepare, read)
    except OSError as problem:
        raise UserError(f"hardware.workers: {workers} processes cannot be started: {problem.strerror}") from None
    early: dict[int, tuple[Exception | None, Any]] = {}
    place = 0
    with pool:
        for index, error, found in pool.run(paths):
            early[index] = error, found
            while place in early:
                error, found = early.pop(place)
                place += 1
                if error is not None:
                    raise error
                yield found


def _prepare(_: Send, read: Callable[[Path], Any]) -> Handler:
    return read


def _size(path: Path) -> int:
    """Returns the bytes of the file; 0 if it is missing, which ``read`` reports."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
