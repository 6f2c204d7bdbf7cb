"""scikit-learn's handwritten digits (1,797 real 8x8 images, 0..16 grey levels), which come with the package."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from knot_runner.data.images.types import Images

EMBEDDED_DIGITS = [str(digit) for digit in range(10)]


def read_digits(shape: list[int]) -> Images:
    """All digits as uint8 [1797, *shape]: scaled bilinearly to height and width, the same in every channel."""
    table = _table()
    grey_levels, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64]
    channels, height, width = shape
    grey = np.rint(scale(grey_levels * (255 / 16), height, width)).astype(np.uint8)
    return Images(np.repeat(grey[:, None], channels, axis=1), labels.astype(np.int64))


def _table() -> np.ndarray:
    """float64 [1797, 65]: 64 grey levels and the digit, as ``sklearn.datasets.load_digits`` reads them.

    From the file in the package: to import scikit-learn, and with it pandas, takes a second of every run.
    """
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None  # a dependency
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        return np.loadtxt(file, delimiter=",")


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
