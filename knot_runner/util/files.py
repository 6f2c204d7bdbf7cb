"""Atomic file writes (temporary file, fsync, rename, fsync of the folder), and locks that end with the process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from knot_runner.util.errors import LOGGER, DiskError, ReadOnlyError, UserError
from knot_runner.util.shared_memory import size_text

#: A row of ``rounds.jsonl``.
LogRow = dict[str, Any]
#: Part of a record, as plain data.
Facts = dict[str, Any]
#: Error numbers of a read-only folder, a full disk, and a failing disk.
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FAILING = (errno.EIO, errno.ESTALE)


def refused(path: Path, problem: OSError, needed: int = 0) -> UserError:
    """Return the user error that reports ``problem``, an OSError about the file ``path``.

    ``needed``: number of bytes that could not be written; 0 if nothing was to be written.
    """
    reason = problem.strerror or str(problem)
    if problem.errno in FULL:
        hint = "Make room, then repeat the command"
        return DiskError(f"disk full: {_shortage(path, needed)} ({reason})", path, hint=hint)
    if needed:
        reason = f"cannot be written ({needed} bytes): {reason}"
    if problem.errno in FAILING:
        return DiskError(reason, path, hint="Check the disk, then repeat the command")
    kind = ReadOnlyError if problem.errno in READ_ONLY else UserError
    return kind(reason, path)


def _shortage(path: Path, needed: int) -> str:
    """Return what is exhausted on the full disk that holds ``path``: inodes, space, or the user's quota."""
    disk = os.statvfs(next(folder for folder in path.absolute().parents if folder.exists()))
    free = disk.f_bavail * disk.f_frsize
    if disk.f_files and not disk.f_favail:
        return "has no inodes left"
    if free > needed:
        return f"has {size_text(free)}, so a quota or a different limit is reached"
    return f"needs {size_text(needed)}, has {size_text(free)}"


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Inside the block, replace an OSError about a file below ``folder`` by the error that :func:`refused` returns."""
    try:
        yield
    except OSError as problem:
        path = Path(problem.filename or "/")
        if not path.is_relative_to(folder):
            raise
        raise refused(path, problem) from None


@contextlib.contextmanager
def removal() -> Iterator[None]:
    """If a file cannot be deleted inside the block, log a warning instead of raising an error.

    Use this block only to delete files that are no longer needed.
    """
    try:
        yield
    except OSError as problem:
        LOGGER.warning("%s: no longer needed, but cannot be deleted: %s", problem.filename, problem.strerror)


def require_writable(folder: Path, key: str) -> None:
    """Create ``folder`` and check that files can be created in it.

    Raises:
        UserError: The folder is not writable. The message names the setting ``key``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        if isinstance(problem, FileExistsError | NotADirectoryError):
            raise UserError(f"{folder} is not a folder, and no folder can be created there", key) from None
        kind = type(refused(folder, problem))
        raise kind(f"{key}: {folder}: cannot be written: {problem.strerror or problem}") from None


def write_atomic(path: Path, content: bytes | str | Sequence[bytes | memoryview], durable: bool = True) -> None:
    """Write the file ``path`` atomically: after an error, the file has its previous content.

    Args:
        path: The file.
        content: The new content. The items of a sequence are concatenated.
        durable: Whether the write is atomic even if the power fails.

    Raises:
        UserError: The file cannot be written. The error is a :class:`DiskError` if the disk is full or fails, and a
            :class:`ReadOnlyError` if writing is not permitted.
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
    """Return the sha256 hex digest of the concatenation of ``parts``."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON to the file ``path``, atomically (:func:`write_atomic`)."""
    write_atomic(path, json_text(value))


def json_text(value: object) -> str:
    """Return ``value`` as indented JSON.

    Raises:
        ValueError: ``value`` contains NaN, which JSON does not define.
    """
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def regular(path: Path) -> Path:
    """Check that ``path`` is a regular file, and return ``path``.

    Call this function before reading: reading a pipe, for example, may never end.

    Raises:
        OSError: ``path`` does not exist or is not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path


def writable(path: Path) -> Path:
    """Check that ``path`` is a regular file or does not exist, and return ``path``. Call this function before writing.

    Raises:
        OSError: ``path`` is not a regular file.
    """
    return regular(path) if path.exists() else path


def read_json(path: Path) -> Any | None:
    """Return the JSON in ``path``; None if the file is missing, not a regular file, or not valid JSON."""
    try:
        return parsed_json(regular(path).read_bytes())
    except OSError:
        return None


def parsed_json(content: bytes) -> Any | None:
    """Return the JSON value in ``content``; None if ``content`` is not valid JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def sha256(path: Path) -> str:
    """Return the sha256 hex digest of the file ``path``.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def set_aside_files(folder: Path, names: Sequence[str]) -> Path:
    """Move files of ``folder`` into the new folder ``folder/set-aside-<n>``, and return the new folder.

    The number n is the smallest positive integer for which this folder does not exist yet. ``names`` are the names of
    the files, in the order in which the files are moved.

    Raises:
        UserError: A file cannot be moved.
    """
    target = first_free(folder, "set-aside")
    try:
        target.mkdir(parents=True)
        for name in names:
            if (folder / name).exists():
                (folder / name).replace(target / name)
    except OSError as problem:
        raise refused(target, problem) from None
    return target


def first_free(folder: Path, name: str) -> Path:
    """Return the first of the paths ``folder/NAME-1``, ``folder/NAME-2``, ... that does not exist."""
    number = 1
    while (path := folder / f"{name}-{number}").exists():
        number += 1
    return path


def append_synced(path: Path, line: str) -> None:
    """Append ``line`` and a newline to the file ``path``, and wait until the disk has stored the line (fsync).

    Raises:
        UserError: The file cannot be written. The error is a :class:`DiskError` if the disk is full.
    """
    data = line.encode() + b"\n"
    try:
        with writable(path).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        raise refused(path, problem, len(data)) from None


class BusyError(Exception):
    """Another process (or thread) holds the lock."""


@contextlib.contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` inside the block. The lock is also released if the process is killed.

    If the lock is already held, even by this process, the function waits for its release, unless ``wait`` is false.

    Raises:
        BusyError: The lock is already held, and ``wait`` is false.
        UserError: The file cannot be created or locked.
        ReadOnlyError: The disk is read-only.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = writable(path).open("wb")
    except OSError as problem:
        raise refused(path, problem) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(str(path)) from None
        except OSError as problem:
            hint = "The file system does not support locks. Use a folder on another one"
            raise UserError(f"cannot be locked: {problem.strerror}", path, hint=hint) from None
        yield


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files that a killed process left in ``folder``.

    Call this function only while this process holds the folder's lock.
    """
    for leftover in folder.glob("*.tmp"):
        leftover.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush ``folder`` to the disk (fsync). New and renamed files in ``folder`` then survive a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
