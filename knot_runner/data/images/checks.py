"""Shared by readers of images: checks of shape and labels.

All raise :class:`UserError` naming the file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

#: reads train and test of ``task.local``
ImageReader = Callable[[DataFolder, ImageTaskSettings], ImageParts]
#: reads one of them: (folder, entries, "train" or "test", shape, classes) -> images
PartReader = Callable[[DataFolder, list[str], str, list[int], list[str]], Images]


def by_part(read: PartReader) -> ImageReader:
    """The reader of train and test, for formats whose two parts are read alike."""

    def read_parts(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
        train, test = (
            read(folder, entries, part, settings.shape, settings.classes) if entries else None
            for part, entries in (("train", settings.local.train), ("test", settings.local.test))
        )
        return ImageParts(train, test)

    return read_parts


def check_shape(where: object, found: tuple[int, ...], shape: list[int]) -> None:
    """``found`` (channels, height, width) of the images in ``where`` must be ``task.shape``."""
    if tuple(found) != tuple(shape):
        raise UserError(f"{where}: its images are {_sides(found)}, but task.shape is {_sides(shape)}")


def check_image_labels(where: object, labels: np.ndarray, classes: int) -> None:
    """``labels`` (integers [N]) must be 0 to ``classes`` - 1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{where}: image {first + 1} has label {labels[first]}; task.classes has {classes}: 0 to {classes - 1}"
        )


def concatenate_images(where: object, files: list[Images]) -> Images:
    """The images of several files (without writers), of at least one image."""
    if not sum(map(len, files)):
        raise UserError(f"{where}: there is no image")
    return Images(np.concatenate([file.pixels for file in files]), np.concatenate([file.labels for file in files]))


def _sides(shape: tuple[int, ...] | list[int]) -> str:
    return "x".join(map(str, shape))
