"""Load a text task: read the data sets, map labels, and divide the texts into splits."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from knot_runner.config.settings.text_tasks import TEXT_READERS, File, HubSource, LocalSource, TaskSettings
from knot_runner.data import splits
from knot_runner.data.checksums import DataFolder, open_folder
from knot_runner.data.embedded import generate
from knot_runner.data.hub import read_hub_texts
from knot_runner.data.readers import emotion_file
from knot_runner.data.rows import TextTable, check_raw_labels, read_table, table_notes, to_examples
from knot_runner.data.tasks import Dataset, Examples, PartyTask, repeated_note
from knot_runner.util.errors import UserError


def load_task(settings: TaskSettings, data_root: Path | None) -> PartyTask:
    """Return the text task that ``settings`` describes. Equal settings and files give equal tasks.

    Args:
        settings: Settings of the task.
        data_root: The data folder, or None. It is needed only if ``settings.source`` is ``local``.

    Raises:
        UserError: The data cannot be loaded. The message names the key, or the file and line.
    """
    task = PartyTask(settings.name, settings.labels, {}, settings.source)
    embedded = settings.source == "embedded"
    if embedded:
        task.notes.append(f"{settings.name}: the texts are generated. Results are not comparable to published ones")
    folder = open_folder(data_root) if settings.source == "local" else None
    for name, data in settings.datasets.items():
        parts = generate(settings, name, data) if embedded else _read(settings, name, folder, task)
        if not parts:
            continue
        parts = {split: _finish(settings, name, part) for split, part in parts.items()}
        task.datasets[name] = Dataset(name, data.role, parts)
        if "test" in parts:
            task.notes.extend(repeated_note(name, parts["train"], parts["test"]))
    if not any(data.role == "local" for data in task.datasets.values()):
        raise UserError(f"all local data sets of task {settings.name} are missing", "task.datasets")
    if folder is not None:
        task.files.extend(folder.files)
    return task


def check_text_files(settings: TaskSettings, data_root: Path | None) -> None:
    """Check the source settings of a text task, and check that its files exist. No file is read.

    Raises:
        UserError: A setting is missing or invalid, or a file is missing.
    """
    folder = open_folder(data_root) if settings.source == "local" else None
    for name in settings.datasets:
        source = _checked_source(settings, name)
        if isinstance(source, LocalSource):
            _files_there(settings, name, source, folder)


def _read(settings: TaskSettings, name: str, folder: DataFolder | None, task: PartyTask) -> dict[str, Examples]:
    """Return train, valid and test of one data set, or {} if the data set is left out. Add notes to ``task``."""
    data = settings.datasets[name]
    check_raw_labels(name, data, settings.labels)
    source = _checked_source(settings, name)
    if isinstance(source, HubSource):
        tables = read_hub_texts(name, source, task.notes)
    else:
        files, absent = _files_there(settings, name, source, folder)
        if not files:
            task.notes.append(f"{name}: left out, since these files are missing: {', '.join(absent)}")
            return {}
        if absent:
            task.notes.append(f"{name}: read without these missing files: {', '.join(absent)}")
        tables = {}
        for split, listed in files.items():
            tables[split] = [_table(source, folder, file) for file in listed]
    parts = {}
    for split, split_tables in tables.items():
        for table in split_tables:
            task.rows[folder.short(Path(table.source)) if folder else table.source] = table.read
        parts[split] = to_examples(split_tables, name, data, settings.labels, settings.context)
    task.notes.extend(table_notes(name, chain.from_iterable(tables.values())))
    return splits.complete_splits(name, parts, data.role, settings.split, task.notes)


def _checked_source(settings: TaskSettings, name: str) -> LocalSource | HubSource:
    """Return the data set's source after the checks that need no file."""
    where = f"task.datasets.{name}.{settings.source}"
    data = settings.datasets[name]
    source: LocalSource | HubSource | None = getattr(data, settings.source)
    if source is None:
        raise UserError(f"required by task.source={settings.source}, but not set", where)
    key = "files" if isinstance(source, LocalSource) else "splits"
    splits.check_layout(f"{where}.{key}", {split for split, named in getattr(source, key).items() if named})
    columns = source.columns
    wanted = "cannot use"
    if settings.kind == "inference":
        wanted = "needs"
    if settings.context and columns.dialogue is None:
        raise UserError(f"required by task.context={settings.context}, but not set", f"{where}.columns.dialogue")
    if columns.label is None and data.role != "transfer":
        raise UserError("required, but not set. Labels are optional only in a transfer set", f"{where}.columns.label")
    if (columns.pair is not None) != (settings.kind == "inference"):
        raise UserError(f"kind={settings.kind} {wanted} a column of second sentences", f"{where}.columns.pair")
    return source


def _files_there(
    settings: TaskSettings, name: str, source: LocalSource, folder: DataFolder
) -> tuple[dict[str, list[File]], list[str]]:
    """Return split -> files to read for the data set ``name``. ``folder`` records the missing paths.

    The result is empty if the data set is left out because of missing files.

    Raises:
        UserError: A file is missing that ``task.missing`` does not allow, or a split has no file.
    """
    given = {split: files for split, files in source.files.items() if files}
    absent = {}
    is_whole = True
    for file in chain.from_iterable(given.values()):
        gone = [path for path in _paths(folder, source, file) if not path.is_file()]
        if gone:
            absent[file.path] = gone
        else:
            is_whole = False
    required = [path for path in absent if path not in settings.may_be_missing]
    if required and not (is_whole and name in settings.may_be_missing):
        role = settings.datasets[name].role
        first = required[0]
        if not is_whole:
            remedy = f"Other files of data set {name} exist. To run without this file, use task.missing=[{first}]"
        elif role == "local":
            remedy = f"To run without data set {name}, use task.missing=[{name}]"
        else:
            remedy = f"Data set {name} (role={role}) is required. Add this file"
        raise UserError(f"file not found (task.datasets.{name}.local.files). {remedy}", absent[first][0])
    for path in chain.from_iterable(absent.values()):
        folder.absent(path)
    if required:
        return {}, list(absent)
    kept = {}
    for split, files in given.items():
        kept[split] = [file for file in files if file.path not in absent]
        if not kept[split]:
            raise UserError(f"file not found: {files[0].path}", f"task.datasets.{name}.local.files.{split}")
    return kept, list(absent)


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


def _finish(settings: TaskSettings, name: str, examples: Examples) -> Examples:
    """Apply ``chunk`` and ``max_examples``, and remove the labels of a transfer set, in this order."""
    data = settings.datasets[name]
    if data.chunk is not None and settings.source != "embedded":  # generated data sets do not share one corpus
        examples = splits.chunk(name, examples, data.chunk)
    if settings.max_examples is not None:
        examples = splits.limit(examples, settings.max_examples, settings.split.seed)
    return examples.unlabeled() if data.role == "transfer" else examples
