"""scikit-learn's handwritten digits (1,797 real 8x8 images, 0..16 grey levels), which come with the package."""

from __future__ import annotations

import numpy as np

from knot_runner.tasks.images.types import Images

DIGITS = [str(digit) for digit in range(10)]


def read_digits(shape: list[int]) -> Images:
    """All digits as uint8 [1797, *shape]: scaled bilinearly to height and width, the same in every channel."""
    from sklearn.datasets import load_digits  # here, since scikit-learn takes a second to import

    digits = load_digits()
    channels, height, width = shape
    grey = np.rint(scale(digits.images * (255 / 16), height, width)).astype(np.uint8)
    return Images(np.repeat(grey[:, None], channels, axis=1), digits.target.astype(np.int64))


def scale(images: np.ndarray, height: int, width: int) -> np.ndarray:
    """``images`` [N, h, w] -> [N, height, width], bilinear between pixel centres, edges held (as image libraries do
    when they enlarge; when shrinking, nothing is averaged)."""
    down, across = _weights(images.shape[1], height), _weights(images.shape[2], width)
    return down @ images @ across.T


def _weights(before: int, after: int) -> np.ndarray:
    """[after, before] weights that interpolate along one axis."""
    at = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    low = np.minimum(at.astype(int), max(before - 2, 0))
    weights = np.zeros((after, before))
    np.add.at(weights, (np.arange(after), low), 1 - (at - low))
    np.add.at(weights, (np.arange(after), np.minimum(low + 1, before - 1)), at - low)
    return weights
