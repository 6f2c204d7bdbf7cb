"""Atomic writing: temp file, fsync, rename, folder fsync; and locks that die with the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from knot_runner.util.errors import DiskFullError, ReadOnlyError, UserError
from knot_runner.util.memory import size_text

#: What the system says where nothing may be written, and where something does not fit.
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def refused(path: Path, problem: OSError, needed: int = 0) -> UserError:
    """The error, in one line, for ``needed`` bytes that could not be written to ``path``."""
    if problem.errno in FULL:
        return DiskFullError(f"disk full: needs {size_text(needed)} ({problem.strerror})", path)
    kind = ReadOnlyError if problem.errno in READ_ONLY else UserError
    return kind(f"{path}: cannot be written ({needed} bytes): {problem.strerror or problem}")


def require_writable(folder: Path, key: str) -> None:
    """Makes ``folder`` and checks that files can be created in it; leaves none.

    Raises :class:`UserError` naming ``key``, the folder's setting.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        if isinstance(problem, FileExistsError | NotADirectoryError):
            raise UserError(f"{folder}: is not a folder, nor can one be made there", key) from None
        kind = type(refused(folder, problem))
        raise kind(f"{key}: {folder}: cannot be written: {problem.strerror or problem}") from None


def write_atomic(path: Path, content: bytes | str | Sequence[bytes | memoryview], durable: bool = True) -> None:
    """Replace ``path`` by ``content`` (parts are written one after another), wholly or not at all, also across a power
    loss (if ``durable``).

    Raises :class:`DiskFullError`, :class:`ReadOnlyError` or another :class:`UserError`, naming the file.
    """
    data = content.encode() if isinstance(content, str) else content
    parts = [data] if isinstance(data, bytes) else data
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as problem:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise refused(path, problem, sum(map(len, parts))) from None


def digest_of_parts(parts: Sequence[bytes | memoryview]) -> str:
    """Hex digest (sha256) of the file that ``parts`` are written to."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """:func:`write_atomic` of ``value`` as :func:`json_text`."""
    write_atomic(path, json_text(value))


def json_text(value: Any) -> str:
    """``value`` as indented JSON; NaN is refused, since JSON has none and readers differ."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any | None:
    """The JSON in ``path``; None when it is missing or not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def set_aside_files(folder: Path, names: Sequence[str]) -> Path:
    """Move the files ``names`` of ``folder`` into ``folder/set-aside-<n>``, with the first free n; returns that.

    They go in the order of ``names``, so that a kill in between leaves the last ones. Raises :class:`UserError`.
    """
    number = 1
    while (target := folder / f"set-aside-{number}").exists():
        number += 1
    try:
        target.mkdir(parents=True)
        for name in names:
            if (folder / name).exists():
                (folder / name).replace(target / name)
    except OSError as problem:
        raise refused(target, problem) from None
    return target


def append_synced(path: Path, line: str) -> None:
    """Append ``line`` and a newline, and fsync.

    Raises :class:`UserError` naming the file when it cannot be, :class:`DiskFullError` on a full disk.
    """
    data = line.encode() + b"\n"
    try:
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise refused(path, problem, len(data)) from None


class BusyError(Exception):
    """Another process (or thread) holds the lock."""


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (made if need be). The lock dies with the process, so none is ever stale.

    Without ``wait`` :class:`BusyError` is raised when another holds it. A second lock in one process counts as another.
    Raises :class:`UserError` where the lock cannot be made, :class:`ReadOnlyError` on a read-only disk.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except OSError as problem:
        raise refused(path, problem) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(str(path)) from None
        yield


def remove_temporaries(folder: Path) -> None:
    """Deletes temporary files of a killed process in ``folder``; call under the folder's lock."""
    for leftover in folder.glob("*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
