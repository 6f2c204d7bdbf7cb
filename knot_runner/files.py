"""Writing that a kill cannot halve: temp file, fsync, rename, folder fsync; and locks that die with the process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knot_runner.errors import UserError


def write_atomic(path: Path, content: bytes | str, durable: bool = True) -> None:
    """Replace ``path`` by ``content``, wholly or not at all, also across a power loss (if ``durable``).

    Raises :class:`UserError` naming the file when the disk is full or the folder is read-only.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _sync_folder(path.parent)
    except OSError as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({len(data)} bytes): {problem.strerror or problem}") from None


def write_json(path: Path, value: Any) -> None:
    """:func:`write_atomic` of ``value`` as indented JSON; NaN is refused, since no reader agrees on it."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any | None:
    """The JSON in ``path``; None when it is not there or cannot be read as JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_synced(path: Path, line: str) -> int:
    """Append ``line`` and a newline, fsync, and return the file's new length in bytes.

    Raises :class:`UserError` naming the file when it cannot be (a full disk).
    """
    try:
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            return file.tell()
    except OSError as problem:
        raise UserError(f"{path}: cannot be written: {problem.strerror or problem}") from None


class BusyError(Exception):
    """Another process (or thread) holds the lock."""


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if need be). The lock dies with the process, so none is ever stale.

    Without ``wait`` :class:`BusyError` is raised when another holds it. A second lock in one process counts as another.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(str(path)) from None
        yield


def remove_temporaries(folder: Path) -> None:
    """Delete what a killed process left half-written in ``folder``; call under the folder's lock."""
    for leftover in folder.glob("*.tmp"):
        leftover.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
