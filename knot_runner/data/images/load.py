"""Load an image task from its source, check it before training, and assign coordinates to its classes.

The distance between the coordinates of two classes measures how severe it is to confuse them.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from knot_runner.config.settings.image_tasks import IMAGE_READERS, ImageTaskSettings
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.data.splits import hold_out, limited
from knot_runner.data.tasks import ImageParts, Images, ImageTask, repeated_note
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError

if TYPE_CHECKING:
    from knot_runner.data.checksums import DataFolder

#: Classes of scikit-learn's handwritten digits, which need no files and no network.
EMBEDDED_DIGITS = [str(digit) for digit in range(10)]
#: Distance between two classes of the same superclass, and between two classes of different superclasses.
WITHIN, ACROSS = 1.0, 2.0


def class_points(settings: ImageTaskSettings) -> list[list[float]] | None:
    """Return one point per class [C][d] according to ``task.geometry``; None for "given" without coordinates."""
    if settings.geometry == "onehot":
        return one_hot(len(settings.classes))
    if settings.geometry == "superclasses":
        return superclass_points(settings.classes, settings.superclasses)
    return settings.coordinates


def one_hot(classes: int) -> list[list[float]]:
    """Return unit vectors [C][C]; the distance between any two is sqrt(2)."""
    return np.eye(classes).tolist()


def label_space(classes: list[str], coordinates: list[list[float]] | None) -> Labels:
    """Return ``classes`` at their ``coordinates``. Without coordinates, all pairs of classes have the same distance."""
    return Labels(classes, coordinates or one_hot(len(classes)), "semantic")


def superclass_points(classes: list[str], superclasses: dict[str, list[str]]) -> list[list[float]]:
    """Return points [C][C + S]: at distance ``WITHIN`` within a superclass, and at distance ``ACROSS`` otherwise.

    A point is the scaled unit vector of the class, followed by the scaled unit vector of its superclass.
    """
    of = {name: number for number, members in enumerate(superclasses.values()) for name in members}
    class_points = WITHIN / math.sqrt(2) * np.eye(len(classes))
    shared = math.sqrt((ACROSS**2 - WITHIN**2) / 2) * np.eye(len(superclasses))[[of[name] for name in classes]]
    return np.hstack([class_points, shared]).tolist()


def load_images(settings: ImageTaskSettings, data_root: Path | None) -> ImageTask:
    """Return the task of ``settings.source``, with held-out test images and at most ``max_examples`` training images.

    ``data_root``: the folder of ``local`` sources. Equal settings and files give bitwise equal tasks.

    Raises:
        UserError: The data cannot be loaded. The message names the key or file.
    """
    parts, files = read_parts(settings, data_root)
    classes, coordinates = settings.classes, class_points(settings)
    if settings.source == "embedded":
        classes = EMBEDDED_DIGITS
        # the coordinates of the first ten classes, if the task has at least ten
        coordinates = coordinates[:10] if coordinates and len(coordinates) >= 10 else None
    train, test, notes = _split(settings, parts)
    present = len(np.unique(train.labels))
    if present < len(classes):
        notes.append(f"{settings.name}: the training images are of {present} of the {len(classes)} classes")
    train, test = same_dtype(train, test)
    notes += repeated_note(settings.name, train, test)
    return ImageTask(
        settings.name, classes, coordinates, train, test, settings.mean, settings.std, settings.source,
        parts.user_names, parts.file_names, notes, files,
    )  # fmt: skip


def read_parts(settings: ImageTaskSettings, data_root: Path | None) -> tuple[ImageParts, list[Opened]]:
    """Return the images of ``settings.source`` unchanged, and the files that the reader opened."""
    if settings.source == "local":
        folder = _open_source(settings, data_root)
        return IMAGE_READERS[settings.local.format](folder, settings), folder.files
    if settings.source == "hub":
        from knot_runner.data.hub import read_hub_images

        return read_hub_images(settings), []
    note = (
        f"{settings.name}: scikit-learn's handwritten digits are used instead (task.source=embedded). "
        f"Results are not comparable to results on {settings.name}"
    )
    return ImageParts(read_digits(settings.shape), None, notes=[note]), []


def _open_source(settings: ImageTaskSettings, data_root: Path | None) -> DataFolder:
    """Return the data folder after checking ``task.local`` without reading files.

    Raises:
        UserError: No files are listed, or a file is listed twice.
    """
    from knot_runner.data.checksums import open_folder

    source = settings.local
    if source is None:
        raise UserError("required by task.source=local, but not set", "task.local")
    if not source.train:
        raise UserError("expected at least one file", "task.local.train")
    folder = open_folder(data_root)
    twice = set(source.train) & set(source.test)
    if twice and source.format != "cifar":  # one cifar archive holds both
        raise UserError(f"{min(twice)} is also in task.local.train", "task.local.test")
    return folder


def _split(settings: ImageTaskSettings, parts: ImageParts) -> tuple[Images, Images, list[str]]:
    """Return (train, test, notes). Test images are held out if the source has none. Both parts are limited in size."""
    train, test, notes = parts.train, parts.test, list(parts.notes)
    for part, images in (("train", train), ("test", test)):
        if images is not None and not len(images):
            raise UserError(f"no {part} images found for {settings.name}", f"task.{settings.source}")
    if test is None:
        train, test = hold_out(train, settings.holdout, settings.cut_seed)
        of = "the images" if test.users is None else "each writer's images"
        share = f"{settings.holdout:.0%} of {of}, {len(test)}, are held out"
        notes.append(f"{settings.name}: no test set. {share}")
    if settings.max_examples is not None:
        train, test = limited(train, test, settings.max_examples, settings.cut_seed)
    return train, test, notes


def same_dtype(*parts: Images) -> list[Images]:
    """Return all images as uint8, or all images as float32 if any of them is float32."""
    if len({part.pixels.dtype for part in parts}) == 1:
        return list(parts)
    return [replace(part, pixels=unit_pixels(part.pixels, np.float32)) for part in parts]


def unit_pixels(pixels: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """Return ``pixels`` (uint8 or floating point) scaled to 0..1, as ``dtype``."""
    floats = pixels.astype(dtype)
    return floats / dtype(255) if pixels.dtype == np.uint8 else floats


def read_digits(shape: list[int]) -> Images:
    """Return scikit-learn's 1,797 real 8x8 digits (gray levels 0 to 16) as uint8 [1797, *shape].

    The digits are scaled bilinearly to height and width, and every channel has the same values.
    """
    table = _digits_table()
    gray_levels, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64]
    channels, height, width = shape
    gray = np.rint(scale(gray_levels * (255 / 16), height, width)).astype(np.uint8)
    return Images(np.repeat(gray[:, None], channels, axis=1), labels.astype(np.int64))


@functools.lru_cache(maxsize=1)  # parsing the text takes half the time of a tiny run
def _digits_table() -> np.ndarray:
    """Return float64 [1797, 65]: 64 gray levels and the digit, as in ``sklearn.datasets.load_digits``.

    The table is read directly from scikit-learn's data file, because importing scikit-learn and pandas takes a second.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None  # a dependency
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    table.setflags(write=False)
    return table


def scale(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return ``images`` [..., h, w] scaled bilinearly to [..., height, width].

    Interpolation is between pixel centers, and edge values are repeated, as in image libraries that enlarge. Shrinking
    does not average.
    """
    down, across = _scale_weights(images.shape[-2], height), _scale_weights(images.shape[-1], width)
    return down @ images @ across.T


def _scale_weights(before: int, after: int) -> np.ndarray:
    """Return [after, before] weights that interpolate along one axis."""
    at = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    low = np.minimum(at.astype(int), max(before - 2, 0))
    weights = np.zeros((after, before))
    np.add.at(weights, (np.arange(after), low), 1 - (at - low))
    np.add.at(weights, (np.arange(after), np.minimum(low + 1, before - 1)), at - low)
    return weights
