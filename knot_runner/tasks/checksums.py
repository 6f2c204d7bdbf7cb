"""The folder ``paths.data``, and the checksums of the files in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from knot_runner.errors import UserError

#: name of the checksum file that ``sha256sum`` writes; where the data folder has it, each file read must fit it
CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True)
class DataFolder:
    """``paths.data`` and the sha256 (hex) its checksum file gives for files (paths relative to the folder)."""

    root: Path
    checksums: dict[str, str]

    def check(self, path: Path) -> None:
        """Raise :class:`UserError` where ``path`` has a checksum and does not fit it."""
        wanted = self.checksums.get(self.short(path))
        if wanted is None:
            return
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wanted:
            raise UserError(
                f"{path}: is cut short or changed: sha256 {found[:12]}... where {CHECKSUMS} has {wanted[:12]}..."
            )

    def file(self, name: str | Path) -> Path:
        """The file ``name``, there and as its checksum says; else :class:`UserError`."""
        path = self.root / name
        if not path.is_file():
            raise UserError(f"{path}: is not there{' (a folder is)' if path.is_dir() else ''}")
        self.check(path)
        return path

    def short(self, path: Path) -> str:
        """``path`` as seen from the folder, with forward slashes; whole where it lies elsewhere."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()


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
