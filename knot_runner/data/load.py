"""Loading a task: every data set from its source, labelled, split, and checked before anything is trained."""

from __future__ import annotations

from pathlib import Path

from knot_runner.config.settings import DatasetSettings, HubSource, LocalSource, TaskSettings
from knot_runner.data import cuts
from knot_runner.data.checksums import DataFolder, open_folder
from knot_runner.data.embedded import generate
from knot_runner.data.examples import Dataset, Examples, TextTask
from knot_runner.data.hub import read_hub_texts
from knot_runner.data.local import is_absent, read_local
from knot_runner.data.rows import check_raw_labels, dropped_notes, to_examples
from knot_runner.util.errors import UserError


def load_task(settings: TaskSettings, data_root: Path | None) -> TextTask:
    """The task's data sets from ``settings.source`` (``data_root``: the folder ``local`` reads).

    Same settings and files, same task. Raises :class:`UserError` naming the key, or the file and line.
    """
    notes: list[str] = []
    if settings.source == "embedded":
        notes.append(f"{settings.name}: the texts are generated; these numbers say nothing of the real data sets")
    folder = open_folder(data_root) if settings.source == "local" else None
    datasets, rows = {}, {}
    for name, data in settings.datasets.items():
        splits = _splits(settings, name, data, folder, notes, rows)
        if splits is not None:
            datasets[name] = Dataset(name, data.role, _finish(settings, name, data, splits))
            notes.extend(_seen_before(datasets[name]))
    if not any(data.role == "local" for data in datasets.values()):
        raise UserError(f"task.datasets: no local data set of {settings.name} is left; its files are missing")
    return TextTask(
        settings.name, settings.labels, datasets, settings.source, notes, folder.files if folder else [], rows
    )


def _seen_before(dataset: Dataset) -> list[str]:
    """A line when most test texts stand in train too: the score then shows memory. Short utterances repeat anyway."""
    if "test" not in dataset.splits:
        return []
    train, test = (
        list(zip(part.texts, part.pairs or [""] * len(part), strict=True))
        for part in (dataset.splits["train"], dataset.splits["test"])
    )
    known = set(train)
    share = sum(text in known for text in test) / max(len(test), 1)
    return (
        [f"{dataset.name}: {share:.0%} of the test texts stand in train too; its score is memory"]
        if share > 0.5
        else []
    )


def _splits(
    settings: TaskSettings,
    name: str,
    data: DatasetSettings,
    folder: DataFolder | None,
    notes: list[str],
    rows: dict[str, int],
) -> dict[str, Examples] | None:
    """Train, valid, test of one data set, labels known; None when it is left out. ``notes`` and ``rows`` (found in each
    file) grow."""
    if settings.source == "embedded":
        return generate(settings, name, data)
    check_raw_labels(name, data, settings.labels)
    source = _checked_source(settings, name, data)
    if not isinstance(source, LocalSource):
        tables = read_hub_texts(name, source)
    elif is_absent(name, data, folder, name in settings.may_be_missing):
        entries = dict.fromkeys(file.path for files in source.files.values() for file in files)
        notes.append(f"{name}: left out, {', '.join(entries)} not there")
        return None
    else:
        tables = read_local(source, folder)
    every = [table for part in tables.values() for table in part]
    rows |= {folder.short(Path(table.source)) if folder else table.source: table.read for table in every}
    notes.extend(dropped_notes(name, every))
    parts = {key: to_examples(part, name, data, settings.labels, settings.context) for key, part in tables.items()}
    return cuts.complete(name, parts, data.role, settings.split, notes)


def _checked_source(settings: TaskSettings, name: str, data: DatasetSettings) -> LocalSource | HubSource:
    """Where the data set comes from, after all checks that need no file."""
    where = f"task.datasets.{name}.{settings.source}"
    source = data.local if settings.source == "local" else data.hub
    if source is None:
        raise UserError(f"{where}: is not set, so task.source={settings.source} has no {name}")
    if isinstance(source, LocalSource):
        cuts.check_layout(f"{where}.files", {split for split, files in source.files.items() if files})
    else:
        cuts.check_layout(f"{where}.splits", {split for split, names in source.splits.items() if names})
    if settings.context and source.columns.dialogue is None:
        raise UserError(f"{where}.columns.dialogue: is not set, but task.context={settings.context} needs it")
    if source.columns.label is None and data.role != "transfer":
        raise UserError(f"{where}.columns.label: is not set; only a transfer set may lack it")
    if (source.columns.pair is not None) != (settings.kind == "inference"):
        wanted = "needs" if settings.kind == "inference" else "cannot use"
        raise UserError(f"{where}.columns.pair: kind={settings.kind} {wanted} a second sentence")
    return source


def _finish(
    settings: TaskSettings, name: str, data: DatasetSettings, splits: dict[str, Examples]
) -> dict[str, Examples]:
    """Chunk, limit, and a transfer set's labels taken off, in this order."""
    made = {}
    for key, examples in splits.items():
        if data.chunk is not None and settings.source != "embedded":  # generated parties do not share a corpus
            examples = cuts.chunk(name, examples, data.chunk)
        if settings.limit is not None:
            examples = cuts.limit(examples, settings.limit, settings.split.seed)
        made[key] = examples.unlabelled() if data.role == "transfer" else examples
    return made
