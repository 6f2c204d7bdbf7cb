"""The folder ``paths.data``: the one door to its files, where each is checked against its checksum and noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from knot_runner.provenance import fingerprints
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError

#: name of the checksum file that ``sha256sum`` writes; where the data folder has it, each file read must fit it
CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True)
class DataFolder:
    """``paths.data`` and the sha256 (hex) its checksum file gives for files (paths relative to the folder).

    For one loading of one task: ``noted`` fills with what passes, by path.
    """

    root: Path
    checksums: dict[str, str]
    noted: dict[str, Opened] = field(default_factory=dict)

    @property
    def files(self) -> list[Opened]:
        """All that was read so far, or looked for and not there."""
        return list(self.noted.values())

    def check(self, path: Path) -> None:
        """Note the file ``path``. Raises :class:`UserError` where it has a checksum and does not fit it."""
        short = self.short(path)
        if short not in self.noted:
            self.noted[short] = fingerprints.fingerprint(path, short)
            self._check(path, self.noted[short])

    def absent(self, path: Path) -> None:
        """Note that ``path`` was looked for and is not there."""
        self.noted[self.short(path)] = fingerprints.absent(self.short(path))

    def contents(self, folder: Path, pattern: str, accept: Callable[[Path], None]) -> Iterator[tuple[Path, bytes]]:
        """The small files below ``folder`` that fit ``pattern``, sorted: each is shown to ``accept``, which may raise,
        then read and checked; all are noted together at the end."""
        parts = []
        for name in fingerprints.members(folder, pattern):
            accept(path := folder / name)
            content, part = fingerprints.read_fingerprints(path, name)
            self._check(path, part)
            parts.append(part)
            yield path, content
        self.noted[self.short(folder)] = fingerprints.merge_fingerprints(self.short(folder), pattern, parts)

    def members(self, folder: Path, pattern: str) -> list[Path]:
        """The large files below ``folder`` that fit ``pattern``, sorted; checked each, and noted together."""
        parts = [fingerprints.fingerprint(folder / name, name) for name in fingerprints.members(folder, pattern)]
        for part in parts:
            self._check(folder / part.path, part)
        self.noted[self.short(folder)] = fingerprints.merge_fingerprints(self.short(folder), pattern, parts)
        return [folder / part.path for part in parts]

    def path(self, entry: str) -> Path:
        """Where ``entry`` of the settings lies: the one place where the folder is put before a name, so that a
        relative folder is put there once."""
        return self.root / entry

    def file(self, path: Path) -> Path:
        """``path`` (of :meth:`path`), once it is a file that is there and as its checksum says; else
        :class:`UserError`."""
        if not path.is_file():
            raise UserError(f"{path}: is not there{' (a folder is)' if path.is_dir() else ''}")
        self.check(path)
        return path

    def short(self, path: Path) -> str:
        """``path`` as seen from the folder, with forward slashes; whole where it lies elsewhere."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    def _check(self, path: Path, found: Opened) -> None:
        wanted = self.checksums.get(self.short(path)) if self.checksums else None
        if wanted is not None and found.sha256 != wanted:
            raise UserError(
                f"{path}: is cut short or changed: sha256 {found.sha256[:12]}... where {CHECKSUMS} has {wanted[:12]}..."
            )


def open_folder(root: Path | None) -> DataFolder:
    """The folder that ``task.source=local`` reads. Raises :class:`UserError` where it is not given or not there."""
    if root is None:
        raise UserError("paths.data: is not set; task.source=local needs paths.data=DIR or the variable KNOT_DATA")
    if not root.is_dir():
        raise UserError(f"paths.data: {root} is not a folder")
    return DataFolder(root, _checksums(root))


def _checksums(root: Path) -> dict[str, str]:
    path = root / CHECKSUMS
    if not path.is_file():
        return {}
    wanted = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        digest, _, name = line.strip().partition(" ")
        if len(digest) != 64 or not name.strip():
            raise UserError(f"{path}: line {number}: not '<sha256>  <file>', as sha256sum writes it")
        wanted[name.strip().removeprefix("*").removeprefix("./")] = digest.lower()
    return wanted
