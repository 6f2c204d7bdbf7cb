"""gld23k: landmark photographs grouped by photographer (Google Landmarks v2, federated split of Hsu et al. 2020).

The folder layout matches TFF and FedML: ``data_user_dict/gld23k_user_dict_train.csv`` and ``..._test.csv`` (columns
user_id, image_id, class), and next to that folder ``images/<image_id>.jpg``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.folders import check_image_file, decode
from knot_runner.data.readers import read_csv
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

USER, IMAGE, LABEL = "user_id", "image_id", "class"


@dataclass(frozen=True)
class _Row:
    """One line of a CSV file: the image's path, its photographer ("" in the test file), and its class."""

    image: Path
    user: str
    label: int


def read_gld23k(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Return the training images with users, and the test images of ``task.local.test`` without users.

    Images are uint8. Each is the centered part of its photograph, scaled to ``settings.shape``. Errors are raised as
    :class:`UserError` naming the file, and the line for a CSV file.
    """
    local, classes = settings.local, len(settings.classes)
    seen: set[Path] = set()
    train = [row for entry in local.train for row in _rows(folder, entry, classes, True, seen)]
    test = [row for entry in local.test for row in _rows(folder, entry, classes, False, seen)]
    rows = [*train, *test]
    pixels = _decode(folder, [row.image for row in rows], settings.shape)
    labels = np.array([row.label for row in rows], dtype=np.int64)
    numbers: dict[str, int] = {}
    users = np.array([numbers.setdefault(row.user, len(numbers)) for row in train], dtype=np.int64)
    held = Images(pixels[len(train) :], labels[len(train) :]) if local.test else None
    return ImageParts(Images(pixels[: len(train)], labels[: len(train)], users), held, list(numbers))


def _rows(folder: DataFolder, entry: str, classes: int, with_users: bool, seen: set[Path]) -> list[_Row]:
    """Return the rows of one CSV file. ``seen`` holds the image paths of previous files; add the new paths to it."""
    path = folder.file(folder.path(entry))
    images = path.parent.parent / "images"
    wanted = [USER, IMAGE, LABEL] if with_users else [IMAGE, LABEL]
    rows = []
    for line, record in read_csv(path):
        where = f"{path}: line {line}"
        for column in wanted:
            if not record.get(column):
                raise UserError(f"no value for {column}. Expected the columns {USER}, {IMAGE}, {LABEL}", where)
        name, label = record[IMAGE], record[LABEL]
        if not (name.isascii() and name.isalnum()):
            raise UserError(f"{IMAGE} {name!r:.40} contains characters other than letters and digits", where)
        if not (label.isascii() and label.isdecimal() and len(label) < 10 and int(label) < classes):
            raise UserError(f"class {label!r:.40} is not a class number from 0 to {classes - 1} (task.classes)", where)
        image = images / f"{name}.jpg"
        if image in seen:
            raise UserError(f"image {name} is repeated", where)
        if not image.is_file():
            raise UserError(f"file not found, but {where} lists it", image)
        seen.add(image)
        rows.append(_Row(image, record[USER] if with_users else "", int(label)))
    return rows


def _decode(folder: DataFolder, paths: list[Path], shape: list[int]) -> np.ndarray:
    """Return the images at ``paths`` as uint8 [N, C, H, W]. Each folder is read once and recorded as one entry."""
    pixels = np.empty((len(paths), *shape), np.uint8)
    row_of = {path: row for row, path in enumerate(paths)}
    for images in dict.fromkeys(path.parent for path in paths):
        for path, data in folder.contents(images, "*.jpg", check_image_file):
            if path in row_of:
                pixels[row_of[path]] = decode(str(path), data, shape)
    return pixels
