"""Loading a text task: every data set from its source, labelled, split, and checked before anything is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from knot_runner.config.settings import DatasetSettings, File, HubSource, LocalSource, TaskSettings
from knot_runner.config.strict import by_key
from knot_runner.data import splits
from knot_runner.data.checksums import DataFolder, check_left_out, open_folder
from knot_runner.data.embedded import generate
from knot_runner.data.hub import read_hub_texts
from knot_runner.data.readers import TEXT_READERS, emotion_file
from knot_runner.data.rows import TextTable, check_raw_labels, read_table, table_notes, to_examples
from knot_runner.data.tasks import Dataset, Examples, PartyTask, repeated_note
from knot_runner.util.errors import UserError, nearest


@dataclass
class _Seen:
    """What is told of a task beside its examples: notes, rows per file or hub split, and by data set the files that it
    is read without."""

    notes: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, list[str]] = field(default_factory=dict)


def load_task(settings: TaskSettings, data_root: Path | None) -> PartyTask:
    """The task's data sets from ``settings.source`` (``data_root``: the folder that ``local`` reads).

    Same settings and files, same task. Raises :class:`UserError` naming the key, or the file and line.
    """
    seen = _Seen()
    if settings.source == "embedded":
        seen.notes.append(f"{settings.name}: the texts are generated; these numbers say nothing of the real data sets")
    folder = open_folder(data_root) if settings.source == "local" else None
    datasets = {}
    for name, data in settings.datasets.items():
        embedded = settings.source == "embedded"
        parts = generate(settings, name, data) if embedded else _read(settings, name, folder, seen)
        if parts is not None:
            datasets[name] = Dataset(name, data.role, _finish(settings, name, data, parts))
            splits_read = datasets[name].splits
            if "test" in splits_read:
                seen.notes.extend(repeated_note(name, splits_read["train"], splits_read["test"]))
    if not any(data.role == "local" for data in datasets.values()):
        raise UserError(f"task.datasets: no local data set of {settings.name} is left; its files are missing")
    files = folder.files if folder else []
    notes = [*_lacking_notes(seen.lacking), *seen.notes]
    return PartyTask(settings.name, settings.labels, datasets, settings.source, notes, files, seen.rows)


def check_text_files(settings: TaskSettings, folder: DataFolder | None) -> None:
    """Raise the :class:`UserError` of :func:`load_task` where a data set has no source, or files of it are not below
    ``folder`` (of ``source=local``) and it may not be left out. Nothing is read."""
    for name, data in settings.datasets.items():
        source = _checked_source(settings, name, data)
        if isinstance(source, LocalSource):
            _files_there(settings, name, source, folder)


def _lacking_notes(lacking: dict[str, list[str]]) -> list[str]:
    """A line for each list of files that data sets are read without."""
    names = by_key((", ".join(files), name) for name, files in lacking.items())
    return [f"{', '.join(sets)}: read without {files}: not there" for files, sets in names.items()]


def _read(settings: TaskSettings, name: str, folder: DataFolder | None, seen: _Seen) -> dict[str, Examples] | None:
    """Labelled train, valid and test of one data set; None when it is left out. ``seen`` grows."""
    data = settings.datasets[name]
    check_raw_labels(name, data, settings.labels)
    source = _checked_source(settings, name, data)
    if isinstance(source, HubSource):
        tables = read_hub_texts(name, source, seen.notes)
    else:
        files, absent = _files_there(settings, name, source, folder)
        if not files:
            seen.notes.append(f"{name}: left out, {', '.join(absent)} not there")
            return None
        if absent:
            seen.lacking[name] = absent
        tables = {split: [_table(source, folder, file) for file in own] for split, own in files.items()}
    parts = {}
    for split, own in tables.items():
        seen.rows |= {folder.short(Path(table.source)) if folder else table.source: table.read for table in own}
        parts[split] = to_examples(own, name, data, settings.labels, settings.context)
    seen.notes.extend(table_notes(name, [table for own in tables.values() for table in own]))
    return splits.complete_splits(name, parts, data.role, settings.split, seen.notes)


def _checked_source(settings: TaskSettings, name: str, data: DatasetSettings) -> LocalSource | HubSource:
    """The data set's source, after all checks that need no file."""
    where = f"task.datasets.{name}.{settings.source}"
    source = data.local if settings.source == "local" else data.hub
    if source is None:
        raise UserError(f"{where}: is not set, so task.source={settings.source} has no {name}")
    key, entries = ("files", source.files) if isinstance(source, LocalSource) else ("splits", source.splits)
    splits.check_layout(f"{where}.{key}", {split for split, named in entries.items() if named})
    if isinstance(source, LocalSource) and source.format not in TEXT_READERS:
        raise UserError(f"{where}.format: no reader '{source.format}'{nearest(source.format, TEXT_READERS)}")
    if settings.context and source.columns.dialogue is None:
        raise UserError(f"{where}.columns.dialogue: is not set, but task.context={settings.context} needs it")
    if source.columns.label is None and data.role != "transfer":
        raise UserError(f"{where}.columns.label: is not set; only a transfer set may lack it")
    if (source.columns.pair is not None) != (settings.kind == "inference"):
        wanted = "needs" if settings.kind == "inference" else "cannot use"
        raise UserError(f"{where}.columns.pair: kind={settings.kind} {wanted} a second sentence")
    return source


def _files_there(
    settings: TaskSettings, name: str, source: LocalSource, folder: DataFolder
) -> tuple[dict[str, list[File]], list[str]]:
    """Split -> the files to read of the data set ``name``, and the paths of those that are not there, which ``folder``
    records. No files: the data set is left out.

    Raises :class:`UserError` where ``task.missing`` does not have the data set or the file that is not there, or a
    split is left without a file.
    """
    given = {split: files for split, files in source.files.items() if files}
    left_out = {
        file.path: _paths(folder, source, file)
        for file in _all_files(given)
        if file.path in settings.may_be_missing and not any(path.exists() for path in _paths(folder, source, file))
    }
    kept = {split: [file for file in files if file.path not in left_out] for split, files in given.items()}
    absent = _absent_files(settings, name, source, kept, folder)
    emptied = [split for split, files in kept.items() if not files]
    if emptied and not absent:
        gone = ", ".join(file.path for file in given[emptied[0]])
        raise UserError(f"task.datasets.{name}.local.files.{emptied[0]}: none of its files is there: {gone}")
    for path in chain.from_iterable(left_out.values()):
        folder.absent(path)
    return ({} if absent else kept), list(dict.fromkeys([*absent, *left_out]))


def _absent_files(
    settings: TaskSettings, name: str, source: LocalSource, kept: dict[str, list[File]], folder: DataFolder
) -> list[str]:
    """[], or all of the files ``kept`` where the data set may be left out and none of them is there, which ``folder``
    records."""
    paths = list(dict.fromkeys(path for file in _all_files(kept) for path in _paths(folder, source, file)))
    absent = [path for path in paths if not path.is_file()]
    if not absent:
        return []
    role = settings.datasets[name].role
    remedy = f"task.missing=[{name}] goes on without {name}"
    if role != "local":
        remedy = f"the {role} data set cannot be left out"
    first = next(file.path for file in _all_files(kept) if absent[0] in _paths(folder, source, file))
    word = "skip" if first in settings.optional else f"[{first}]"
    in_part = f"task.missing={word} reads {name} without this file, which makes another data set of it"
    check_left_out(name, absent, len(paths), in_part, None if name in settings.may_be_missing else remedy)
    for path in absent:
        folder.absent(path)
    return list(dict.fromkeys(file.path for file in _all_files(kept)))


def _all_files(files: dict[str, list[File]]) -> list[File]:
    return list(chain.from_iterable(files.values()))


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


def _finish(
    settings: TaskSettings, name: str, data: DatasetSettings, parts: dict[str, Examples]
) -> dict[str, Examples]:
    """Chunk, limit, and a transfer set's labels taken off, in this order."""
    finished = {}
    for key, examples in parts.items():
        if data.chunk is not None and settings.source != "embedded":  # generated parties do not share a corpus
            examples = splits.chunk(name, examples, data.chunk)
        if settings.limit is not None:
            examples = splits.limit(examples, settings.limit, settings.split.seed)
        finished[key] = examples.unlabelled() if data.role == "transfer" else examples
    return finished
