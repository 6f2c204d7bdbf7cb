"""Access to the data folder ``paths.data_dir``.

All data files are opened through this module. It verifies checksums and records fingerprints (:class:`Opened`).
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
    """The data folder ``paths.data_dir``, with a record of the files that one task reads.

    Attributes:
        root: Path of the data folder.
        checksums: Dict from the path of a file to its sha256 in ``SHA256SUMS``.
        opened: Dict from path to fingerprint. A file that was not found has a fingerprint without a digest.
    """

    root: Path
    checksums: dict[str, str]
    opened: dict[str, Opened] = field(default_factory=dict)

    @property
    def files(self) -> list[Opened]:
        """Return the fingerprints in ``opened``."""
        return list(self.opened.values())

    def path(self, entry: str) -> Path:
        """Return the path of ``entry``, a file or folder named in the settings."""
        return self.root / entry

    def short(self, path: Path) -> str:
        """Return ``path`` as text. A path inside the data folder is made relative to this folder."""
        if path.is_relative_to(self.root):
            path = path.relative_to(self.root)
        return path.as_posix()

    def check(self, path: Path) -> None:
        """Record the fingerprint of the file ``path``, and verify the file's checksum.

        Raises:
            UserError: The file's checksum differs from the checksum in ``SHA256SUMS``.
        """
        short = self.short(path)
        if short not in self.opened:
            self.opened[short] = fingerprints.fingerprint(path, short)
            self._check(path, self.opened[short])

    def file(self, path: Path) -> Path:
        """Check that ``path`` is a file with the correct checksum, and return ``path``.

        Raises:
            UserError: ``path`` is not a file, or the checksum of the file is wrong.
        """
        if not path.is_file():
            raise UserError("expected a file, got a folder" if path.is_dir() else "file not found", path)
        self.check(path)
        return path

    def absent(self, path: Path) -> None:
        """Record that the file ``path`` was not found."""
        self.opened[self.short(path)] = fingerprints.absent(self.short(path))

    def contents(
        self, folder: Path, pattern: str, accept: Callable[[Path], None] = lambda path: None
    ) -> Iterator[tuple[Path, bytes]]:
        """Yield (path, content) of all files below ``folder`` that match ``pattern``. The files are sorted by name.

        One common fingerprint is recorded for all these files.

        Args:
            folder: The folder.
            pattern: Pattern of paths relative to the folder.
            accept: Function that is called with the path of each file before the file is read. It may raise an error.
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
    """Context manager: errors of reading or decompressing the file ``path`` become :class:`UserError`."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise UserError(f"the gzip file is truncated or corrupt ({problem})", path) from None
    except OSError as problem:
        raise UserError(f"cannot be read: {problem.strerror or problem}", path) from None


def open_unpacked(path: Path) -> BinaryIO:
    """Open the file ``path`` for reading bytes. The content of a gzip file is decompressed."""
    with path.open("rb") as raw:
        if raw.read(2) == b"\x1f\x8b":
            return gzip.open(path, "rb")
    return path.open("rb")


def missing_entries(local: ImageFiles, root: Path) -> list[str]:
    """Return the files and folders named in ``local`` that do not exist below ``root``.

    A path inside a zip file counts as existing if the zip file exists.
    """
    missing = []
    for entry in dict.fromkeys([*local.train, *local.test]):
        if not any((root / path).exists() for path in (entry, *archives(entry))):
            missing.append(entry)
    return missing


def archives(entry: str) -> list[str]:
    """Return a list with the path of the zip file that contains ``entry``; [] if ``entry`` is not inside a zip file.

    For example, ``DIR/a.zip/train`` gives ``["DIR/a.zip"]``.
    """
    head, zip_end, _ = entry.partition(".zip/")
    if not zip_end:
        return []
    return [head + ".zip"]
