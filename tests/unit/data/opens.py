"""What Python really opens, from its audit events: the oracle for what loaders say they read."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from knot_runner.provenance import Opened

_watched: list[tuple[Path, set[str]]] = []


def _hook(event: str, arguments: tuple) -> None:
    if event == "open" and _watched and isinstance(arguments[0], str):
        path = Path(arguments[0])
        for root, seen in _watched:
            if path.is_relative_to(root):
                seen.add(path.relative_to(root).as_posix())


sys.addaudithook(_hook)  # for good, as audit hooks are; it does nothing unless files are watched


@contextlib.contextmanager
def opened_below(root: Path) -> Iterator[set[str]]:
    """The files below ``root`` that are opened meanwhile."""
    _watched.append((root, seen := set()))
    try:
        yield seen
    finally:
        _watched.pop()


def paths(files: list[Opened], root: Path) -> set[str]:
    """The files that ``files`` stand for, a folder's one by one; those that were not there left out."""
    found: set[str] = set()
    for one in files:
        if one.pattern:
            found |= {path.relative_to(root).as_posix() for path in (root / one.path).glob(one.pattern)}
        elif one.sha256 is not None:
            found.add(one.path)
    return found


def check(files: list[Opened], root: Path) -> None:
    """Sizes, times and digests are those on disk, and no file is there twice."""
    assert len({one.path for one in files}) == len(files)
    for one in files:
        if one.pattern:
            stats = [path.stat() for path in (root / one.path).glob(one.pattern)]
            wanted = sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
            assert (one.size, one.mtime_ns) == wanted and len(one.sha256) == len(one.listing) == 64
        elif one.sha256 is not None:
            path = root / one.path
            assert one.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
            assert (one.size, one.mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
