"""A data set's tables from files under ``paths.data``."""

from __future__ import annotations

from pathlib import Path

from knot_runner.errors import UserError
from knot_runner.settings import File, LocalSource
from knot_runner.tasks.checksums import DataFolder
from knot_runner.tasks.readers import READERS, emotion_file
from knot_runner.tasks.rows import Table, read_table


def read_local(
    name: str, source: LocalSource, folder: DataFolder, skip: bool
) -> tuple[dict[str, list[Table]], list[str]]:
    """Tables per split (train, valid, test, pool, heldout), and the files that are not there; ``folder`` notes both.

    Raises :class:`UserError`, unless ``skip``, for a missing file.
    """
    tables: dict[str, list[Table]] = {}
    missing: list[str] = []
    for split, files in source.files.items():
        for file in files:
            paths = _paths(folder, source, file)
            absent = [path for path in paths if not path.is_file()]
            if absent and not skip:
                raise UserError(f"{absent[0]}: is not there (for {name}); task.missing=skip goes on without it")
            for path in absent:
                folder.absent(path)
            if absent:
                missing.append(file.path)
                continue
            for path in paths:
                folder.check(path)
            table = read_table(str(paths[0]), READERS[source.format](paths[0]), source.columns, file.where, file.rows)
            tables.setdefault(split, []).append(table)
    return tables, missing


def _paths(folder: DataFolder, source: LocalSource, file: File) -> list[Path]:
    path = folder.path(file.path)
    return [path, emotion_file(path)] if source.format == "dailydialog" else [path]
