"""PNG and JPEG images to arrays."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from knot_runner.data.images.checks import check_shape
from knot_runner.util.errors import UserError
from knot_runner.util.processes import warnings_apart

#: task.shape's channels -> Pillow's mode of such an image
MODES = {1: "L", 3: "RGB"}


def decode(where: str, data: bytes, shape: list[int]) -> np.ndarray:
    """The image file ``data`` as uint8 [C, H, W]. Raises :class:`UserError` naming ``where``.

    The size is compared with ``shape`` before any pixel is decoded, so a small file cannot unfold to a huge image.
    """
    try:
        with warnings_apart("error", Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))
    except Exception as problem:
        raise _broken(where, problem) from None
    return to_array(where, image, shape)


def to_array(where: str, image: Image.Image, shape: list[int]) -> np.ndarray:
    """``image`` as uint8 [C, H, W]; grey and palette images become the task's kind, nothing is scaled."""
    mode = MODES.get(shape[0])
    if mode is None:
        raise UserError(f"task.shape: {shape[0]} channels; images in files have 1 (grey) or 3 (colour)")
    check_shape(where, (shape[0], image.height, image.width), shape)
    if image.mode not in ("1", "L", "P", "RGB"):
        raise UserError(f"{where}: is of kind {image.mode}; grey, palette and RGB images of 8 bits can be read")
    try:
        pixels = np.asarray(image.convert(mode))
    except Exception as problem:
        raise _broken(where, problem) from None
    return pixels.reshape(*shape[1:], -1).transpose(2, 0, 1)


def _broken(where: str, problem: Exception) -> UserError:
    """Pillow's decoders raise OSError, SyntaxError, struct.error and more for a broken file, so all are caught."""
    return UserError(f"{where}: is no readable PNG or JPEG image ({type(problem).__name__})")
