"""A data set's tables from files under ``paths.data``."""

from __future__ import annotations

import hashlib
from pathlib import Path

from knot_runner.errors import UserError
from knot_runner.settings import File, LocalSource
from knot_runner.tasks.readers import READERS, emotion_file
from knot_runner.tasks.rows import Table, read_table

#: name of the checksum file that ``sha256sum`` writes; where the data folder has it, each file read must fit it
CHECKSUMS = "SHA256SUMS"


def read_local(
    name: str, source: LocalSource, root: Path | None, skip: bool
) -> tuple[dict[str, list[Table]], list[str]]:
    """Tables per split (train, valid, test, pool, heldout), and the files that are not there.

    Raises :class:`UserError` when ``root`` is not given, and, unless ``skip``, for a missing file.
    """
    if root is None:
        raise UserError("paths.data: is not set; task.source=local needs paths.data=DIR or the variable KNOT_DATA")
    if not root.is_dir():
        raise UserError(f"paths.data: {root} is not a folder")
    checksums = _checksums(root)
    tables: dict[str, list[Table]] = {}
    missing: list[str] = []
    for split, files in source.files.items():
        for file in files:
            absent = [path for path in _paths(root, source, file) if not path.is_file()]
            if absent and not skip:
                raise UserError(f"{absent[0]}: is not there (for {name}); task.missing=skip goes on without it")
            if absent:
                missing.append(file.path)
            else:
                tables.setdefault(split, []).append(_read(root, source, file, checksums))
    return tables, missing


def _paths(root: Path, source: LocalSource, file: File) -> list[Path]:
    path = root / file.path
    return [path, emotion_file(path)] if source.format == "dailydialog" else [path]


def _read(root: Path, source: LocalSource, file: File, checksums: dict[str, str]) -> Table:
    for path in _paths(root, source, file):
        wanted = checksums.get(path.relative_to(root).as_posix()) if path.is_relative_to(root) else None
        if wanted is not None:
            _check_digest(path, wanted)
    path = root / file.path
    return read_table(str(path), READERS[source.format](path), source.columns, file.where, file.rows)


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


def _check_digest(path: Path, wanted: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        raise UserError(
            f"{path}: is cut short or changed: sha256 {found[:12]}... where {CHECKSUMS} has {wanted[:12]}..."
        )
