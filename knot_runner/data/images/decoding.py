"""PNG and JPEG images, decoded to arrays. All raise :class:`UserError` naming the file."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from knot_runner.data.images.checks import check_shape
from knot_runner.util.errors import UserError
from knot_runner.util.processes import warnings_apart

#: task.shape's channels -> Pillow's mode of such an image
MODES = {1: "L", 3: "RGB"}


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
