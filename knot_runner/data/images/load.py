"""Load an image task, check its images, and assign a point to each class.

The distance between the points of two classes measures how severe a confusion of these classes is.
"""

from __future__ import annotations

import functools
import gzip
import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from knot_runner.config.settings.image_tasks import IMAGE_READERS, ImageTaskSettings
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.data.splits import hold_out, limited
from knot_runner.data.tasks import ImageParts, Images, ImageTask, repeated_note
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError

#: Classes of scikit-learn's handwritten digits, which need no files and no network.
EMBEDDED_DIGITS = [str(digit) for digit in range(10)]
#: Distance between two classes of the same superclass, and between two classes of different superclasses.
WITHIN = 1.0
ACROSS = 2.0


def class_points(settings: ImageTaskSettings) -> list[list[float]] | None:
    """Return the coordinates of one point per class; None if the task defines no coordinates."""
    if settings.geometry == "onehot":
        return one_hot(len(settings.classes))
    if settings.geometry == "superclasses":
        return superclass_points(settings.classes, settings.superclasses)
    return settings.coordinates


def one_hot(classes: int) -> list[list[float]]:
    """Return one unit vector per class. The distance between any two of the vectors is sqrt(2)."""
    return np.eye(classes).tolist()


def label_space(classes: list[str], coordinates: list[list[float]] | None) -> Labels:
    """Return the label space of ``classes``. Without ``coordinates``, all pairs of classes have the same distance."""
    return Labels(classes, coordinates or one_hot(len(classes)), "semantic")


def superclass_points(classes: list[str], superclasses: dict[str, list[str]]) -> list[list[float]]:
    """Return one point per class. The distances between the points reflect the superclasses.

    The distance between two classes is ``WITHIN`` if they belong to the same superclass, otherwise ``ACROSS``. For C
    classes and S superclasses, each point has C + S coordinates.
    """
    is_member = np.stack([np.isin(classes, members) for members in superclasses.values()], axis=1)
    class_points = WITHIN / math.sqrt(2) * np.eye(len(classes))
    return np.hstack([class_points, math.sqrt((ACROSS**2 - WITHIN**2) / 2) * is_member]).tolist()


def load_images(settings: ImageTaskSettings, data_root: Path | None) -> ImageTask:
    """Return the image task that ``settings`` describes.

    The task has at most ``settings.max_examples`` training images. If the source has no test images, a fraction of its
    images becomes the test images. Equal settings and files give bitwise equal tasks.

    Args:
        settings: Settings of the task.
        data_root: The data folder, or None. It is needed only if ``settings.source`` is ``local``.

    Raises:
        UserError: The data cannot be loaded. The message names the key or file.
    """
    parts, files = read_parts(settings, data_root)
    classes = settings.classes
    coordinates = class_points(settings)
    if settings.source == "embedded":
        classes = EMBEDDED_DIGITS
        # the digits get the coordinates of the task's first ten classes, if the task has ten classes
        coordinates = coordinates[:10] if coordinates and len(coordinates) >= 10 else None
    train, test, notes = _split(settings, parts)
    present = len(np.unique(train.labels))
    if present < len(classes):
        notes.append(f"{settings.name}: the training images cover {present} of the {len(classes)} classes")
    train, test = same_dtype(train, test)
    notes += repeated_note(settings.name, train, test)
    return ImageTask(
        settings.name, classes, coordinates, train, test, settings.mean, settings.std, settings.source,
        parts.user_names, parts.file_names, notes, files,
    )  # fmt: skip


def read_parts(settings: ImageTaskSettings, data_root: Path | None) -> tuple[ImageParts, list[Opened]]:
    """Return all images of ``settings.source``, and the fingerprints of the files that were read."""
    if settings.source == "local":
        from knot_runner.data.checksums import open_folder

        if settings.local is None:
            raise UserError("required by task.source=local, but not set", "task.local")
        if not settings.local.train:
            raise UserError("expected at least one file", "task.local.train")
        folder = open_folder(data_root)
        return IMAGE_READERS[settings.local.format](folder, settings), folder.files
    if settings.source == "hub":
        from knot_runner.data.hub import read_hub_images

        return read_hub_images(settings), []
    note = (
        f"{settings.name}: scikit-learn's handwritten digits are used instead (task.source=embedded). "
        f"Results are not comparable to results on {settings.name}"
    )
    return ImageParts(read_digits(settings.shape), notes=[note]), []


def _split(settings: ImageTaskSettings, parts: ImageParts) -> tuple[Images, Images, list[str]]:
    """Return (train, test, notes). Test images are held out if the source has none. Both parts are limited in size."""
    train = parts.train
    test = parts.test
    notes = list(parts.notes)
    for part, images in (("train", train), ("test", test)):
        if images is not None and not len(images):
            raise UserError(f"no {part} images found for {settings.name}", f"task.{settings.source}")
    if test is None:
        train, test = hold_out(train, settings.holdout, settings.cut_seed)
        of = "the images" if test.users is None else "each writer's images"
        notes.append(
            f"{settings.name}: no test set, so {settings.holdout:.0%} of {of} ({len(test)} in total) are held out"
        )
    if settings.max_examples is not None:
        train, test = limited(train, test, settings.max_examples, settings.cut_seed)
    return train, test, notes


def same_dtype(*parts: Images) -> list[Images]:
    """Return all ``parts`` as float32 if any part is float32, otherwise as uint8."""
    if len({part.pixels.dtype for part in parts}) == 1:
        return list(parts)
    return [replace(part, pixels=unit_pixels(part.pixels, np.float32)) for part in parts]


def unit_pixels(pixels: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """Return ``pixels`` as ``dtype``, with values from 0 to 1.

    Values of type uint8 are divided by 255. Floating-point values already have this range.
    """
    floats = pixels.astype(dtype)
    return floats / dtype(255) if pixels.dtype == np.uint8 else floats


def read_digits(shape: list[int]) -> Images:
    """Return scikit-learn's 1,797 handwritten digits as uint8 images of shape [1797, C, H, W].

    The argument ``shape`` is [C, H, W]. The 8x8 pixels of each digit are scaled bilinearly. All channels have equal
    values.
    """
    table = _digits_table()
    gray = scale(table[:, :64].reshape(-1, 8, 8) * (255 / 16), *shape[1:])
    pixels = np.rint(gray).astype(np.uint8)[:, None]
    return Images(np.repeat(pixels, shape[0], axis=1), table[:, 64].astype(np.int64))


@functools.lru_cache(maxsize=1)  # parsing the text takes half the time of a tiny run
def _digits_table() -> np.ndarray:
    """Return a float64 array of shape [1797, 65]: the 64 gray levels and the label of each digit.

    The table is that of ``sklearn.datasets.load_digits``, read directly from the data file, because importing
    scikit-learn and pandas takes a second.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None  # scikit-learn is a dependency
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    table.setflags(write=False)
    return table


def scale(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scale images of shape [..., h, w] bilinearly to the shape [..., height, width].

    Values are interpolated between pixel centers. Beyond the border, the nearest value is repeated. When images
    shrink, pixels are not averaged.
    """
    down = _scale_weights(images.shape[-2], height)
    return down @ images @ _scale_weights(images.shape[-1], width).T


def _scale_weights(before: int, after: int) -> np.ndarray:
    """Return the weights that interpolate along one axis, of shape [after, before]."""
    at = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    low = np.minimum(at.astype(int), max(before - 2, 0))
    weights = np.zeros((after, before))
    np.add.at(weights, (np.arange(after), low), 1 - (at - low))
    np.add.at(weights, (np.arange(after), np.minimum(low + 1, before - 1)), at - low)
    return weights
