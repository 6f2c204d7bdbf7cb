"""Shared by readers of images: checks of shape and labels, decoding of PNG and JPEG.

All raise :class:`UserError` naming the file.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError
from knot_runner.util.processes import warnings_apart

#: task.shape's channels -> Pillow's mode of such an image
MODES = {1: "L", 3: "RGB"}
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


def decode(where: str, data: bytes, shape: list[int]) -> np.ndarray:
    """The PNG or JPEG file ``data`` as uint8 [C, H, W].

    Its size is compared with ``shape`` before any pixel is decoded, so that no small file unfolds to a huge image.
    """
    return _to_array(where, _open(where, data), shape)


def decode_fitted(where: str, data: bytes, shape: list[int]) -> np.ndarray:
    """The PNG or JPEG file ``data``, of any size below Pillow's limit for decompression bombs, as uint8 [C, H, W]: the
    largest centred part of the sides' ratio, scaled bilinearly."""
    mode, image = _mode(shape), _open(where, data)
    try:
        fitted = ImageOps.fit(image.convert(mode), (shape[2], shape[1]), Image.Resampling.BILINEAR)
    except Exception as problem:
        raise _broken(where, problem) from None
    return np.asarray(fitted).reshape(*shape[1:], -1).transpose(2, 0, 1)


def _open(where: str, data: bytes) -> Image.Image:
    """The image of ``data``, of which no pixel is decoded yet."""
    try:
        with warnings_apart("error", Image.DecompressionBombWarning):
            return Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except Exception as problem:
        raise _broken(where, problem) from None


def decode_column(where: str, image: Any, shape: list[int]) -> np.ndarray:
    """An image of a hub data set, decoded or not, as uint8 [C, H, W]."""
    if isinstance(image, Image.Image):
        return _to_array(where, image, shape)
    if isinstance(image, dict) and isinstance(image.get("bytes"), bytes):
        return decode(where, image["bytes"], shape)
    raise UserError(f"{where}: is a {type(image).__name__}, not an image; task.hub.image names the column")


def _to_array(where: str, image: Image.Image, shape: list[int]) -> np.ndarray:
    """``image`` as uint8 [C, H, W], grey or RGB as ``shape`` says; nothing is scaled."""
    mode = _mode(shape)
    check_shape(where, (shape[0], image.height, image.width), shape)
    if image.mode not in ("1", "L", "P", "RGB"):
        raise UserError(f"{where}: is of kind {image.mode}; grey, palette and RGB images of 8 bits can be read")
    try:
        pixels = np.asarray(image.convert(mode))
    except Exception as problem:
        raise _broken(where, problem) from None
    return pixels.reshape(*shape[1:], -1).transpose(2, 0, 1)


def _mode(shape: list[int]) -> str:
    mode = MODES.get(shape[0])
    if mode is None:
        raise UserError(f"task.shape: {shape[0]} channels; images in files have 1 (grey) or 3 (colour)")
    return mode


def _broken(where: str, problem: Exception) -> UserError:
    """Pillow's decoders raise OSError, SyntaxError, struct.error and more for a broken file, so all are caught."""
    return UserError(f"{where}: is no readable PNG or JPEG image ({type(problem).__name__})")
