"""Reader of image data sets in LEAF's JSON format (Caldas et al. 2018).

A file has the form ``{users: [name], num_samples: [n], user_data: {name: {x: [[pixel]], y: [label]}}}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder, file_errors
from knot_runner.data.images.load import unit_pixels
from knot_runner.data.readers import parse_object
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

#: LEAF's pixels are bytes divided by 255, rounded to four places in some copies. A pixel within this distance of k/255
#: is read as the byte k.
ROUNDED = 5.1e-5
#: one writer's n images: pixels of shape [n, channels * height * width], uint8 or float32, and n labels
Writer = tuple[np.ndarray, list[int]]


def read_leaf(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Return train and test images, with the writer and the file of each image.

    The settings name JSON files, or folders of JSON files. Each writer must be in exactly one train file. For
    a test image, the returned file is the train file of the same writer, not the test file. Pixels are uint8 if all
    values are multiples of 1/255, otherwise float32.

    Raises:
        UserError: A file is invalid. The message names the file and the writer.
    """
    train = {}
    test = {}
    home = {}
    names = []
    for path, content in _files(folder, settings.local.train):
        names.append(folder.short(path))
        for writer, rows in _writers(path, content, settings):
            if writer in home:
                raise UserError(f"writer {writer!r} is also in {names[home[writer]]}", names[-1])
            home[writer] = len(names) - 1
            train[writer] = rows
    for path, content in _files(folder, settings.local.test):
        for writer, rows in _writers(path, content, settings):
            if writer not in home:
                raise UserError(f"writer {writer!r} is in no training file. Use test files of the same data set", path)
            if writer in test:
                raise UserError(f"writer {writer!r} is also in an earlier test file", path)
            test[writer] = rows
    # LEAF names test files differently, so test images also get the number of the writer's train file.
    images = [_images(part, home, settings.shape) for part in (train, test)]
    return ImageParts(images[0], images[1] if settings.local.test else None, list(home), names)


def _files(folder: DataFolder, entries: list[str]) -> Iterator[tuple[Path, bytes]]:
    """Yield the path and bytes of each file in ``entries``: JSON files, or folders of JSON files."""
    for entry in entries:
        path = folder.path(entry)
        if not path.is_dir():
            with file_errors(folder.file(path)):
                yield path, path.read_bytes()
            continue
        file = None
        for file in folder.contents(path, "*.json"):
            yield file
        if file is None:
            raise UserError("no .json file found", path)


def _images(writers: dict[str, Writer], home: dict[str, int], shape: list[int]) -> Images:
    """Return the images of ``writers``, one writer after another.

    ``home``: writer -> number of the writer's train file; the order of ``home`` defines the writers' numbers.
    """
    exact = all(pixels.dtype == np.uint8 for pixels, _ in writers.values())
    numbers = dict(zip(home, range(len(home)), strict=True))
    flat = [np.zeros((0, math.prod(shape)), np.uint8)]
    labels = []
    users = []
    for name, (pixels, labels_of_writer) in writers.items():
        flat.append(pixels if exact else unit_pixels(pixels, np.float32))
        labels += labels_of_writer
        users += [numbers[name]] * len(labels_of_writer)
    of = np.array(users, np.int64)
    files = np.array(list(home.values()), np.int64)[of]
    return Images(np.concatenate(flat).reshape(-1, *shape), np.array(labels, np.int64), of, files)


def _writers(path: Path, text: bytes, settings: ImageTaskSettings) -> Iterator[tuple[str, Writer]]:
    """Yield the writers of the file ``path``, whose content is ``text``, in the order of ``users`` in the file."""
    content = parse_object(str(path), text)
    users, counts, data = (content.get(key) for key in ("users", "num_samples", "user_data"))
    if not (isinstance(users, list) and isinstance(counts, list) and isinstance(data, dict)):
        raise UserError("not LEAF JSON. Expected the lists 'users' and 'num_samples' and the object 'user_data'", path)
    for name in users:
        if not isinstance(name, str):
            raise UserError(f"each name in 'users' must be a string, got {name!r:.40}", path)
    if len(set(users)) < len(users) or set(users) != data.keys():
        raise UserError("'users' must list each key of 'user_data' exactly once", path)
    if len(counts) != len(users):
        raise UserError(f"'users' has length {len(users)}, but 'num_samples' has length {len(counts)}", path)
    for name, count in zip(users, counts, strict=True):
        yield name, _writer(f"{path}: writer {name!r}", data.pop(name), count, settings)


def _writer(where: str, rows: Any, count: Any, settings: ImageTaskSettings) -> Writer:
    rows = rows if isinstance(rows, dict) else {}
    x = rows.get("x")
    y = rows.get("y")
    classes = len(settings.classes)
    if not (isinstance(x, list) and isinstance(y, list)):
        raise UserError("expected the lists 'x' and 'y'", where)
    if not len(x) == len(y) == count:
        raise UserError(f"has {len(x)} images ('x') and {len(y)} labels ('y'), but 'num_samples' is {count}", where)
    for label in y:
        if type(label) is not int or not 0 <= label < classes:
            raise UserError(f"expected integer labels 0 to {classes - 1} (see task.classes), got {label!r:.40}", where)
    return _pixels(where, x, math.prod(settings.shape)), y


def _pixels(where: str, x: list[Any], side: int) -> np.ndarray:
    """Return the pixels ``x``, of shape [n, side]: uint8 if all values are multiples of 1/255, otherwise float32."""
    if not x:
        return np.zeros((0, side), np.uint8)
    if any(not isinstance(row, list) or len(row) != side for row in x):
        raise UserError(f"each image in 'x' must have {side} values (task.shape)", where)
    try:
        values = np.array(x)
    except ValueError:  # nested lists of different lengths
        values = np.array([])
    if values.ndim != 2 or values.dtype.kind not in "iuf":
        raise UserError("an image in 'x' contains a value that is not a number", where)
    if not 0 <= values.min() <= values.max() <= 1:  # also if NaN
        raise UserError(f"expected pixels from 0 to 1, got {values.min()} to {values.max()}", where)
    steps = np.rint(values * 255)
    if np.abs(values - steps / 255).max() <= ROUNDED:
        return steps.astype(np.uint8)
    return values.astype(np.float32)
