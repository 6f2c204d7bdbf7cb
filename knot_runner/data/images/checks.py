"""What every reader of images checks before it hands them on. All raise :class:`UserError` naming the file."""

from __future__ import annotations

import numpy as np

from knot_runner.data.images.types import Images
from knot_runner.util.errors import UserError


def check_shape(where: object, found: tuple[int, ...], shape: list[int]) -> None:
    """``found`` (channels, height, width) of the images in ``where`` must be ``task.shape``."""
    if tuple(found) != tuple(shape):
        raise UserError(f"{where}: its images are {_sides(found)}, but task.shape is {_sides(shape)}")


def check_image_labels(where: object, labels: np.ndarray, classes: int) -> None:
    """``labels`` (integers [N]) must be numbers of classes, 0 to ``classes`` - 1."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{where}: image {first + 1} has label {labels[first]}; task.classes has {classes}: 0 to {classes - 1}"
        )


def join_parts(where: object, parts: list[Images]) -> Images:
    """The images of several files (without writers), one after another; there must be at least one image."""
    if not sum(map(len, parts)):
        raise UserError(f"{where}: there is no image")
    return Images(np.concatenate([part.pixels for part in parts]), np.concatenate([part.labels for part in parts]))


def _sides(shape: tuple[int, ...] | list[int]) -> str:
    return "x".join(map(str, shape))
