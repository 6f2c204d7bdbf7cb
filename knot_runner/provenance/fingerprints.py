"""Fingerprints of the data files that a run read, to detect later changes of these files.

Metadata are compared first, then contents. Size and modification time alone are not enough, because ``cp -p`` and
``rsync -a`` keep them. A file is therefore read again unless its inode and its change time (ctime) are also equal.
"""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from knot_runner.util.errors import UserError
from knot_runner.util.files import refused, sha256

#: Two ticks of a slow clock, in ns. A file that changed less than this before the run read it may change again without
#: a new ctime. In this case, the ctime is not recorded, and the file is read at every comparison.
TICK = 20_000_000


@dataclass(frozen=True)
class Opened:
    """Fingerprint of what a run has read: one file, or the files of a folder that match a pattern.

    Attributes:
        path: Path relative to the data folder, with forward slashes; absolute if the file is outside the data folder.
        size: Size in bytes.
        mtime_ns: Modification time in ns since 1970; for a folder, the time of its newest file.
        sha256: Hex digest of the file's content; None if the file was missing. For a folder, the digest covers the
            names and digests of its files.
        pattern: For a folder, the pattern that the names of its files match.
        listing: For a folder, hex digest of the names and metadata of the files.
        inode, ctime_ns: Inode number and change time of a file. Both are 0 for a folder, for a missing file, and
            for a file that changed less than :data:`TICK` ns before it was read.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str | None
    pattern: str = ""
    listing: str = ""
    inode: int = 0
    ctime_ns: int = 0


def absent(short: str) -> Opened:
    """Return the fingerprint of a missing file with the path ``short``."""
    return Opened(short, 0, 0, None)


def fingerprint(path: Path, short: str) -> Opened:
    """Return the fingerprint of the file ``path``. The attribute ``path`` of the fingerprint is ``short``.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        stat = path.stat()  # before reading, so that a later change is noticed
        return _opened(short, stat, sha256(path))
    except OSError as problem:
        raise refused(path, problem) from None


def read_fingerprints(path: Path, short: str) -> tuple[bytes, Opened]:
    """Return the content of a small file, and its fingerprint as in :func:`fingerprint`. The file is read only once.

    Raises:
        UserError: The file cannot be read.
    """
    try:
        stat = path.stat()
        content = path.read_bytes()
    except OSError as problem:
        raise refused(path, problem) from None
    return content, _opened(short, stat, hashlib.sha256(content).hexdigest())


def _opened(short: str, stat: os.stat_result, digest: str | None) -> Opened:
    inode = 0
    ctime = 0
    if time.time_ns() - stat.st_ctime_ns > TICK:
        inode = stat.st_ino
        ctime = stat.st_ctime_ns
    return Opened(short, stat.st_size, stat.st_mtime_ns, digest, inode=inode, ctime_ns=ctime)


def members(folder: Path, pattern: str) -> list[str]:
    """Return the sorted names of the files in ``folder`` that match ``pattern``. Hidden files are left out.

    Args:
        folder: The folder.
        pattern: Pattern of paths relative to the folder, such as ``*.json`` or ``*/*``.
    """
    names = glob.glob(pattern, root_dir=folder)  # noqa: PTH207  pathlib's is slow here, and takes hidden names
    return sorted((name for name in names if not is_hidden(Path(name).name)), key=lambda name: name.split("/"))


def is_hidden(name: str) -> bool:
    """Return whether a name starts with a dot, or is ``Thumbs.db`` or ``desktop.ini``, which file managers create."""
    return name.startswith(".") or name in ("Thumbs.db", "desktop.ini")


def merge_fingerprints(short: str, pattern: str, parts: list[Opened]) -> Opened:
    """Return one fingerprint for all files of a folder that match a pattern.

    Args:
        short: Path of the folder, as recorded in the fingerprint.
        pattern: The pattern.
        parts: The fingerprints of the files, in the order of :func:`members`. Their paths are relative to the folder.
    """
    return Opened(
        short,
        sum(part.size for part in parts),
        max((part.mtime_ns for part in parts), default=0),
        _digest(f"{part.path}\0{part.sha256}" for part in parts),
        pattern,
        _digest(f"{part.path}\0{part.size}\0{part.mtime_ns}\0{part.inode}\0{part.ctime_ns}" for part in parts),
    )


class Now:
    """The current differences between data files and their earlier fingerprints.

    Create one object per command. The object compares each fingerprint only once, so it may miss later changes.
    """

    def __init__(self) -> None:
        self._compared = functools.cache(self._compare)
        self._content = functools.cache(_content)

    def change(self, root: Path, was: Opened) -> str | None:
        """Compare a file with its earlier fingerprint ``was``; return the change, or None if the file is unchanged.

        ``root`` is the data folder. The change is ``changed``, ``no longer exists``, ``is new`` or ``cannot be read``.
        """
        return self._compared(root / was.path, was)

    def _compare(self, path: Path, was: Opened) -> str | None:
        if was.sha256 is None:
            return "is new" if path.exists() else None
        exists = path.is_file()
        if was.pattern:
            exists = path.is_dir()
        if not exists:
            return "no longer exists"
        try:
            if was.pattern:
                parts = [_opened(name, (path / name).stat(), None) for name in members(path, was.pattern)]
                same = merge_fingerprints("", was.pattern, parts).listing == was.listing
            else:
                stat = path.stat()
                if stat.st_size != was.size:
                    return "changed"
                same = (stat.st_mtime_ns, stat.st_ino, stat.st_ctime_ns) == (was.mtime_ns, was.inode, was.ctime_ns)
            if same or self._content(path, was.pattern) == was.sha256:
                return None
            return "changed"
        except (OSError, UserError):
            return "cannot be read"


def _content(path: Path, pattern: str) -> str | None:
    if not pattern:
        return fingerprint(path, "").sha256
    parts = [fingerprint(path / name, name) for name in members(path, pattern)]
    return merge_fingerprints("", pattern, parts).sha256


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()
