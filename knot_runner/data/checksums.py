"""The data folder ``paths.data_dir``.

Every data file is opened through this module, which verifies the file's checksum and records the file.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from knot_runner.config.settings.image_tasks import ImageFiles
from knot_runner.provenance import fingerprints
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError

#: Output file of ``sha256sum``. If the data folder contains this file, every listed file must match its digest.
CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True)
class DataFolder:
    """The data folder ``paths.data_dir`` while one task is loaded.

    ``checksums``: path -> sha256 listed in ``SHA256SUMS``. ``opened``: path -> the fingerprint of a file that was read,
    or that was searched but not found.
    """

    root: Path
    checksums: dict[str, str]
    opened: dict[str, Opened] = field(default_factory=dict)

    @property
    def files(self) -> list[Opened]:
        """Return the fingerprints of all files that were read, or were searched but not found, so far."""
        return list(self.opened.values())

    def path(self, entry: str) -> Path:
        """Return the path of ``entry`` (a file or folder named in the settings), to pass to the other methods."""
        return self.root / entry

    def short(self, path: Path) -> str:
        """Return ``path`` relative to the folder, with forward slashes. A path outside the folder stays unchanged."""
        if path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return path.as_posix()

    def check(self, path: Path) -> None:
        """Record the file ``path`` and verify its checksum.

        Raises:
            UserError: The checksum differs from the one listed in ``SHA256SUMS``.
        """
        short = self.short(path)
        if short not in self.opened:
            self.opened[short] = fingerprints.fingerprint(path, short)
            self._check(path, self.opened[short])

    def file(self, path: Path) -> Path:
        """Check and return ``path``. Raises :class:`UserError` if ``path`` is not a file or the checksum is wrong."""
        if not path.is_file():
            raise UserError("expected a file, got a folder" if path.is_dir() else "file not found", path)
        self.check(path)
        return path

    def absent(self, path: Path) -> None:
        """Record that ``path`` was not found."""
        self.opened[self.short(path)] = fingerprints.absent(self.short(path))

    def contents(
        self, folder: Path, pattern: str, accept: Callable[[Path], None] = lambda path: None
    ) -> Iterator[tuple[Path, bytes]]:
        """Yield the path and bytes of each file below ``folder`` that matches ``pattern``, in sorted order.

        All these files are recorded as one entry. ``accept(path)`` is called before each file is read, and may raise an
        error to refuse the file.
        """
        parts = []
        for name in fingerprints.members(folder, pattern):
            accept(path := folder / name)
            content, part = fingerprints.read_fingerprints(path, name)
            self._check(path, part)
            parts.append(part)
            yield path, content
        short = self.short(folder)
        self.opened[short] = fingerprints.merge_fingerprints(short, pattern, parts)

    def _check(self, path: Path, opened: Opened) -> None:
        wanted = self.checksums.get(self.short(path))
        if wanted is not None and opened.sha256 != wanted:
            raise UserError(
                f"truncated or changed: has sha256 {opened.sha256[:12]}..., but {CHECKSUMS} lists {wanted[:12]}...",
                path,
            )


def open_folder(root: Path | None) -> DataFolder:
    """Return the data folder for ``task.source=local``.

    Raises:
        UserError: ``paths.data_dir`` is not set or does not exist, or ``SHA256SUMS`` has an invalid line.
    """
    if root is None:
        raise UserError(
            "required by task.source=local, but not set. Use paths.data_dir=DIR or the variable KNOT_DATA",
            "paths.data_dir",
        )
    if not root.is_dir():
        raise UserError(f"{root} is not a folder", "paths.data_dir")
    path = root / CHECKSUMS
    checksums = dict[str, str]()
    if not path.is_file():
        return DataFolder(root, checksums)
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            digest, _, name = line.strip().partition(" ")
            if len(digest) != 64 or not name:
                raise UserError(f"line {number}: expected '<sha256>  <file>', as written by sha256sum", path)
            checksums[name.strip().removeprefix("*").removeprefix("./")] = digest.lower()
    return DataFolder(root, checksums)


@contextlib.contextmanager
def file_errors(path: Path) -> Iterator[None]:
    """Inside the block, raise :class:`UserError` if reading ``path`` (plain or compressed by gzip) fails."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise UserError(f"the gzip file is truncated or corrupt ({problem})", path) from None
    except OSError as problem:
        raise UserError(f"cannot be read: {problem.strerror or problem}", path) from None


def open_unpacked(path: Path) -> BinaryIO:
    """Open ``path`` for reading bytes, and decompress the content if its first two bytes identify gzip."""
    with path.open("rb") as raw:
        if raw.read(2) == b"\x1f\x8b":
            return gzip.open(path, "rb")
    return path.open("rb")


def missing_entries(local: ImageFiles, root: Path) -> list[str]:
    """Return the files and folders of ``local`` that do not exist below ``root``. Entries may point into zip files."""
    missing = []
    for entry in dict.fromkeys([*local.train, *local.test]):
        if not any((root / path).exists() for path in (entry, *archives(entry))):
            missing.append(entry)
    return missing


def archives(entry: str) -> list[str]:
    """Return a list with the zip file in the path ``entry``: ``DIR/a.zip`` for ``DIR/a.zip/train``; or []."""
    head, zip_end, _ = entry.partition(".zip/")
    if not zip_end:
        return []
    return [head + ".zip"]
