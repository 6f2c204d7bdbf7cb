"""scikit-learn's handwritten digits, which need no files and no network."""

from __future__ import annotations

import functools
import gzip
import importlib.util
from pathlib import Path

import numpy as np

from knot_runner.data.tasks import Images

EMBEDDED_DIGITS = [str(digit) for digit in range(10)]


def read_digits(shape: list[int]) -> Images:
    """Return scikit-learn's 1,797 real 8x8 digits (gray levels 0 to 16) as uint8 [1797, *shape].

    They are scaled bilinearly to height and width, with the same values in every channel.
    """
    table = _digits_table()
    gray_levels, labels = table[:, :64].reshape(-1, 8, 8), table[:, 64]
    channels, height, width = shape
    gray = np.rint(scale(gray_levels * (255 / 16), height, width)).astype(np.uint8)
    return Images(np.repeat(gray[:, None], channels, axis=1), labels.astype(np.int64))


@functools.lru_cache(maxsize=1)  # parsing the text takes half the time of a tiny run
def _digits_table() -> np.ndarray:
    """Return float64 [1797, 65]: 64 gray levels and the digit, as in ``sklearn.datasets.load_digits``.

    They are read from the file in scikit-learn, because importing it, and pandas with it, takes a second.
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
