"""A data set's tables from the Hugging Face hub, at a pinned revision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from knot_runner.config.settings import HubSource, ImageHub
from knot_runner.data.readers import FileRecord
from knot_runner.data.rows import TextTable, read_table
from knot_runner.util.errors import UserError


def read_hub_texts(name: str, source: HubSource) -> dict[str, list[TextTable]]:
    """Tables per split (train, valid, test, pool, heldout). ``HF_HUB_OFFLINE=1`` uses the hub's cache alone.

    Raises :class:`UserError` with the hub's reason in one line.
    """
    return {split: [_table(name, source, theirs) for theirs in names] for split, names in source.splits.items()}


def _table(name: str, source: HubSource, split: str) -> TextTable:
    label = f"{source.id}{f'[{source.config}]' if source.config else ''} {split}"
    rows = load_split(f"task.datasets.{name}.hub", source, split)
    return read_table(label, _records(rows, source), source.columns, source.where)


def load_split(where: str, source: HubSource | ImageHub, split: str) -> Any:
    """One split of a hub data set. Raises :class:`UserError` that begins with ``where``, the setting, and gives the
    hub's reason in one line."""
    import datasets  # takes a second to import, and only this source needs it

    try:
        return datasets.load_dataset(source.id, source.config, revision=source.revision, split=split)
    except Exception as problem:  # the hub's client raises kinds of its own, of requests, of the system
        reason = " ".join(str(problem).split())[:200] or "no reason given"
        raise UserError(
            f"{where}: {source.id} at revision {source.revision} cannot be loaded "
            f"({type(problem).__name__}: {reason}); task.source=local reads files instead"
        ) from None


def _records(rows: Any, source: HubSource) -> Iterator[FileRecord]:
    columns = source.columns
    needed = {columns.text, columns.pair, columns.label, columns.dialogue, *source.where}
    kept = [column for column in rows.column_names if column in needed]
    if len(kept) < len(needed - {None}):  # let the error name the nearest of all columns
        kept = rows.column_names
    return enumerate(rows.select_columns(kept), 1)
