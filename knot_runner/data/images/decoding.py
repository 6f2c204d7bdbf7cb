"""PNG and JPEG images, decoded to arrays. All raise :class:`UserError` naming the file."""

from __future__ import annotations

import contextlib
import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from knot_runner.util.errors import UserError

#: task.shape's channels -> Pillow's mode of such an image
MODES = {1: "L", 3: "RGB"}
#: Pillow's modes that hold 8 bits per channel or fewer. Of 16-bit gray, Pillow would keep 256 of 65,536 levels.
READABLE = ("1", "L", "P", "RGB", "LA", "PA", "RGBA", "CMYK")


def decode(where: str, data: bytes, shape: list[int]) -> np.ndarray:
    """Return the PNG or JPEG file ``data``, of any size below Pillow's limit for decompression bombs, as uint8
    [C, H, W]: the largest centered part of the aspect ratio of ``shape``, scaled bilinearly."""
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))  # no pixel is decoded yet
    except Exception as problem:
        raise _broken(where, problem) from None
    fitted = ImageOps.fit(_flat(where, image, shape), (shape[2], shape[1]), Image.Resampling.BILINEAR)
    return np.asarray(fitted).reshape(*shape[1:], -1).transpose(2, 0, 1)


def _flat(where: str, image: Image.Image, shape: list[int]) -> Image.Image:
    """Return ``image`` as viewers show it on a white page, gray or RGB as ``shape`` says.

    It is turned as its EXIF orientation says, and transparent pixels show white. Every reader decodes with this.
    """
    mode = MODES.get(shape[0])
    if mode is None:
        raise UserError(f"{shape[0]} channels; images in files have 1 (gray) or 3 (color)", "task.shape")
    if image.mode not in READABLE:
        raise UserError(
            f"image mode {image.mode} is not supported. Save it with 8 bits per channel, as grayscale or RGB", where
        )
    try:
        image.load()
        with contextlib.suppress(Exception):  # EXIF data that cannot be read give no orientation
            image = ImageOps.exif_transpose(image)
        if not image.has_transparency_data:
            return image.convert(mode)
        layered = image.convert("RGBA")
    except Exception as problem:
        raise _broken(where, problem) from None
    page = Image.new("RGBA", layered.size, "white")
    page.alpha_composite(layered)
    if _is_uniform(page) and not _is_uniform(layered):
        raise UserError(
            "nothing is visible on a white page, where its transparent pixels show white. Save it with an "
            "opaque background",
            where,
        )
    return page.convert(mode)


def _is_uniform(image: Image.Image) -> bool:
    """Return whether all pixels of an RGBA image are equal."""
    return all(least == largest for least, largest in image.getextrema())


def _broken(where: str, problem: Exception) -> UserError:
    """Pillow's decoders raise OSError, SyntaxError, struct.error and more for a broken file, so all are caught."""
    return UserError(f"is no readable PNG or JPEG image ({type(problem).__name__})", where)
