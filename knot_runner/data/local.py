"""A data set's tables from files under ``paths.data``."""

from __future__ import annotations

from pathlib import Path

from knot_runner.config.settings import DatasetSettings, File, LocalSource
from knot_runner.data.checksums import DataFolder
from knot_runner.data.readers import TEXT_READERS, emotion_file
from knot_runner.data.rows import TextTable, read_table
from knot_runner.util.errors import UserError


def is_absent(name: str, data: DatasetSettings, folder: DataFolder, may_be_missing: bool) -> bool:
    """Whether none of the data set's files is there, which ``folder`` then notes.

    Raises :class:`UserError` where only some of them are there, since half a data set is another one, and where none
    is unless it ``may_be_missing``.
    """
    files = [file for files in data.local.files.values() for file in files]
    paths = [path for file in files for path in _paths(folder, data.local, file)]
    absent = [path for path in dict.fromkeys(paths) if not path.is_file()]
    if not absent:
        return False
    if len(absent) < len(set(paths)):
        raise UserError(
            f"{absent[0]}: is not there (for {name}), though other files of {name} are; a data set is left out whole "
            f"or not at all: task.datasets.{name}.local.files names what is read"
        )
    if not may_be_missing:
        what = f"task.missing=[{name}] goes on without {name}"
        if data.role != "local":
            what = f"the {data.role} data set cannot be left out"
        raise UserError(f"{absent[0]}: is not there (for {name}); {what}")
    for path in absent:
        folder.absent(path)
    return True


def read_local(source: LocalSource, folder: DataFolder) -> dict[str, list[TextTable]]:
    """Tables per split (train, valid, test, pool, heldout) of files that are there; ``folder`` notes them."""
    return {split: [_table(source, folder, file) for file in files] for split, files in source.files.items() if files}


def _table(source: LocalSource, folder: DataFolder, file: File) -> TextTable:
    paths = _paths(folder, source, file)
    for path in paths:
        folder.check(path)
    options = {"delimiter": source.delimiter} if source.format == "csv" else {}
    records = TEXT_READERS[source.format](paths[0], **options)
    return read_table(str(paths[0]), records, source.columns, file.where, file.rows)


def _paths(folder: DataFolder, source: LocalSource, file: File) -> list[Path]:
    path = folder.path(file.path)
    return [path, emotion_file(path)] if source.format == "dailydialog" else [path]
