"""Reader of gld23k: landmark photographs grouped by photographer.

gld23k is the federated split of Google Landmarks v2 by Hsu et al. (2020), in the folder layout of TFF and FedML. The
folder ``data_user_dict`` has the CSV files ``gld23k_user_dict_train.csv`` and ``gld23k_user_dict_test.csv`` with the
columns user_id, image_id and class. The folder ``images`` next to it has the photographs ``<image_id>.jpg``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.folders import check_image_file, decode
from knot_runner.data.readers import read_csv
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

USER = "user_id"
IMAGE = "image_id"
LABEL = "class"


#: image file -> its photographer ("" if unknown) and its class
_Rows = dict[Path, tuple[str, int]]


def read_gld23k(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Return the training and test images. The user of a training image is its photographer.

    Test images have no users. Images are uint8, cropped to the center and scaled to ``settings.shape``.

    Raises:
        UserError: A file is missing or invalid. The message names the file. For a CSV file, it also names the line.
    """
    local = settings.local
    classes = len(settings.classes)
    rows: _Rows = {}
    for entry in local.train:
        _add_rows(rows, folder, entry, classes, USER, IMAGE, LABEL)
    count = len(rows)
    for entry in local.test:
        _add_rows(rows, folder, entry, classes, IMAGE, LABEL)
    pixels = _decode(folder, list(rows), settings.shape)
    labels = np.array([label for _, label in rows.values()], np.int64)
    numbers = {}
    users = [numbers.setdefault(user, len(numbers)) for user, _ in list(rows.values())[:count]]
    return ImageParts(
        Images(pixels[:count], labels[:count], np.array(users, np.int64)),
        Images(pixels[count:], labels[count:]) if local.test else None,
        list(numbers),
    )


def _add_rows(rows: _Rows, folder: DataFolder, entry: str, classes: int, *wanted: str) -> None:
    """Add the rows of one CSV file to ``rows``. The columns ``wanted`` must have values."""
    path = folder.file(folder.path(entry))
    images = path.parent.parent / "images"
    for line, record in read_csv(path):
        where = f"{path}: line {line}"
        for column in wanted:
            if not record.get(column):
                raise UserError(f"no value for {column}. Expected the columns {USER}, {IMAGE}, {LABEL}", where)
        name = record[IMAGE]
        label = record[LABEL]
        if not (name.isascii() and name.isalnum()):
            raise UserError(f"{IMAGE} {name!r:.40} contains characters other than letters and digits", where)
        if not (label.isascii() and label.isdecimal() and len(label) < 10 and int(label) < classes):
            raise UserError(f"class {label!r:.40} is not a whole number from 0 to {classes - 1} (task.classes)", where)
        image = images / f"{name}.jpg"
        if image in rows:
            raise UserError(f"image {name} is repeated", where)
        if not image.is_file():
            raise UserError(f"file not found, but listed in {where}", image)
        rows[image] = record.get(USER, ""), int(label)


def _decode(folder: DataFolder, paths: list[Path], shape: list[int]) -> np.ndarray:
    """Return the images at ``paths`` as uint8 [N, C, H, W]. Each folder is read once and recorded as one entry."""
    pixels = np.empty((len(paths), *shape), np.uint8)
    row_of = {path: row for row, path in enumerate(paths)}
    for images in dict.fromkeys(path.parent for path in paths):
        for path, data in folder.contents(images, "*.jpg", check_image_file):
            if path in row_of:
                pixels[row_of[path]] = decode(str(path), data, shape)
    return pixels
