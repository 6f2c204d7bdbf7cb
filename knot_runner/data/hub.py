"""Texts and images from the Hugging Face hub, at the revision in the settings.

With ``HF_HUB_OFFLINE=1``, only the local cache of the hub is used.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.config.settings.image_tasks import ImageHub, ImageTaskSettings
from knot_runner.config.settings.text_tasks import HubSource
from knot_runner.data.images.owners import NOBODY, or_none
from knot_runner.data.rows import TextTable, identity, read_table
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError, nearest


def load_split(where: str, source: HubSource | ImageHub, split: str, notes: list[str]) -> Any:
    """Return one split of a data set on the Hugging Face hub.

    If the revision of ``source`` is a branch, a warning is appended to ``notes``, because a branch may change.

    Raises:
        UserError: The split cannot be loaded. The message begins with ``where`` and states the hub's reason.
    """
    import datasets  # takes a second to import, and only this source needs it

    try:
        rows = datasets.load_dataset(source.id, source.config, revision=source.revision, split=split)
    except Exception as problem:  # the hub's client raises errors of several libraries and of the OS
        reason = " ".join(str(problem).split())[:200] or "no reason given"
        raise UserError(
            f"{source.id} at revision {source.revision} cannot be loaded "
            f"({type(problem).__name__}: {reason}). To read local files, use task.source=local",
            where,
        ) from None
    note = f"{where}.revision={source.revision} is a branch of {source.id}, which may change. Use a commit hash"
    if not re.fullmatch("[0-9a-f]{40}", source.revision) and note not in notes:
        notes.append(note)
    return rows


def read_hub_texts(name: str, source: HubSource, notes: list[str]) -> dict[str, list[TextTable]]:
    """Read the data set ``name`` from the hub. Return a dict from split to a list of tables.

    A split is train, valid, test, pool or heldout. Warnings are appended to ``notes``.

    Raises:
        UserError: The hub or the data set cannot be read.
    """
    label = f"{source.id}[{source.config}]" if source.config else source.id
    tables = {}
    for split, names in source.splits.items():
        for theirs in names:
            rows = load_split(f"task.datasets.{name}.hub", source, theirs, notes)
            # images and sounds need not be decoded
            rows = rows.remove_columns([name for name, feature in rows.features.items() if hasattr(feature, "decode")])
            tables.setdefault(split, []).append(
                read_table(f"{label} {theirs}", enumerate(rows, 1), source.columns, source.where)
            )
    return tables


def read_hub_images(settings: ImageTaskSettings) -> ImageParts:
    """Return the images of an image task from the hub, as uint8. If ``task.hub.user`` is set, each image has a user.

    Raises:
        UserError: The hub or the data set cannot be read.
    """
    source = settings.hub
    if source is None:
        raise UserError("required by task.source=hub, but not set", "task.hub")
    if set(source.splits) not in ({"train"}, {"train", "test"}):
        raise UserError(
            f"expected the splits ['train'] or ['train', 'test'], got {list(source.splits)}", "task.hub.splits"
        )
    numbers = {}
    parts = {}
    notes = list[str]()
    for part, split in source.splits.items():
        rows = load_split("task.hub", source, split, notes)
        parts[part] = _images(settings, source, f"{source.id} {split}", rows, numbers)
    return ImageParts(**parts, user_names=list(numbers) if source.user else None, notes=notes)


def _images(settings: ImageTaskSettings, source: ImageHub, where: str, rows: Any, numbers: dict[str, int]) -> Images:
    """Return the images of one split, from its hub ``rows``. New writers are added to ``numbers`` (name -> number)."""
    from knot_runner.data.images.checks import check_image_labels
    from knot_runner.data.images.folders import decode  # imports Pillow, for images alone

    columns = [column for column in (source.image, source.label, source.user) if column is not None]
    for column in columns:
        if column not in rows.column_names:
            raise UserError(f"this split has no column {column!r}{nearest(column, rows.column_names)}", where)
    if not len(rows):
        raise UserError("no images found", where)
    pixels = np.empty((len(rows), *settings.shape), np.uint8)
    labels = np.empty(len(rows), np.int64)
    users = np.full(len(rows), NOBODY, np.int64)
    rows = rows.select_columns(columns)
    if hasattr(rows.features[source.image], "decode"):  # all readers use the same decoder
        rows = rows.cast_column(source.image, type(rows.features[source.image])(decode=False))
    for at, row in enumerate(rows):
        here = f"{where}: image {at + 1}"
        label = row[source.label]
        if not isinstance(label, int) or isinstance(label, bool):
            raise UserError(
                f"label {label!r:.40} is not a whole number. Set task.hub.label to the name of the label column", here
            )
        pixels[at] = decode(here, _file_bytes(here, row[source.image]), settings.shape)
        labels[at] = label
        if source.user is not None:
            writer = identity(row[source.user])
            if writer is not None:
                users[at] = numbers.setdefault(writer, len(numbers))
    check_image_labels(where, labels, len(settings.classes))
    return Images(pixels, labels, or_none(users))


def _file_bytes(where: str, image: object) -> bytes:
    """Return the encoded bytes of ``image``, a cell of an image column that holds either bytes or a file path."""
    if isinstance(image, dict):
        if content := image.get("bytes"):
            return content
        if path := image.get("path"):
            return Path(path).read_bytes()
    raise UserError(
        f"expected an image, got {type(image).__name__}. Set task.hub.image to the name of the image column", where
    )
