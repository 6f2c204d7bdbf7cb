"""Images from the Hugging Face hub, at a given revision."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from knot_runner.config.settings import ImageHub
from knot_runner.data.hub import load_split
from knot_runner.data.images.checks import check_image_labels
from knot_runner.data.images.decode import decode, to_array
from knot_runner.data.images.types import Images
from knot_runner.util.errors import UserError, nearest


def read_hub_images(
    source: ImageHub, shape: list[int], classes: list[str]
) -> tuple[Images, Images | None, list[str] | None]:
    """Train and test images (test None where ``splits`` has none) and, with a ``user`` column, the writers' names.

    ``HF_HUB_OFFLINE=1`` uses the hub's cache alone. Raises :class:`UserError`, the hub's reason in one line.
    """
    if "train" not in source.splits or not set(source.splits) <= {"train", "test"}:
        has = ", ".join(source.splits) or "nothing"
        raise UserError(f"task.hub.splits: has {has}; right are train, or train and test")
    numbers: dict[str, int] = {}
    made = {ours: _read(source, theirs, shape, classes, numbers) for ours, theirs in source.splits.items()}
    return made["train"], made.get("test"), list(numbers) if source.user else None


def _read(source: ImageHub, split: str, shape: list[int], classes: list[str], numbers: dict[str, int]) -> Images:
    """One split; ``numbers`` (writer -> number) grows by the writers that are new."""
    rows, where = load_split("task.hub", source, split), f"{source.id} {split}"
    columns = [column for column in (source.image, source.label, source.user) if column is not None]
    for column in columns:
        if column not in rows.column_names:
            raise UserError(f"{where}: has no column {column!r}{nearest(column, rows.column_names)}")
    if not len(rows):
        raise UserError(f"{where}: there is no image")
    pixels = np.empty((len(rows), *shape), np.uint8)
    labels = np.empty(len(rows), np.int64)
    users = np.empty(len(rows), np.int64)
    for at, row in enumerate(rows.select_columns(columns)):
        here = f"{where}: image {at + 1}"
        pixels[at] = _pixels(here, row[source.image], shape)
        labels[at] = _label(here, row[source.label])
        if source.user is not None:
            users[at] = numbers.setdefault(str(row[source.user]), len(numbers))
    check_image_labels(where, labels, len(classes))
    return Images(pixels, labels, users if source.user is not None else None)


def _pixels(where: str, image: Any, shape: list[int]) -> np.ndarray:
    if isinstance(image, Image.Image):
        return to_array(where, image, shape)
    if isinstance(image, dict) and isinstance(image.get("bytes"), bytes):
        return decode(where, image["bytes"], shape)
    raise UserError(f"{where}: is a {type(image).__name__}, not an image; task.hub.image names the column")


def _label(where: str, label: Any) -> int:
    if not isinstance(label, int) or isinstance(label, bool):
        raise UserError(f"{where}: label {label!r:.40} is not a whole number; task.hub.label names the column")
    return label
