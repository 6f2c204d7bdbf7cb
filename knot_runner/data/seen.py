"""Finds test examples that another model has trained on, by content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from knot_runner.data.tasks import Examples, Images


def example_digests(part: Examples | Images) -> list[str]:
    """Returns a digest of each example without its label: an image's pixels in units of 1/255, a text and its second
    sentence."""
    if isinstance(part, Images):
        pixels = part.pixels if part.pixels.dtype == np.uint8 else np.rint(part.pixels * 255).astype(np.uint8)
        return [hashlib.sha256(image.tobytes()).hexdigest() for image in np.ascontiguousarray(pixels)]
    pairs = part.pairs or [""] * len(part)
    return [
        hashlib.sha256(f"{len(text)} {text}{other}".encode()).hexdigest()
        for text, other in zip(part.texts, pairs, strict=True)
    ]


def digests_of(parts: Iterable[Examples | Images]) -> set[str]:
    """:func:`example_digests` of all ``parts``."""
    return {one for part in parts for one in example_digests(part)}


def seen_rows(tests: Examples | Images, learnt: set[str], repeated: set[str]) -> np.ndarray:
    """Returns the rows of ``tests`` whose content is in ``learnt`` but not in ``repeated``: content in both the
    training and the test part of one task (short texts, say) is no evidence of a leak between two tasks."""
    found = [row for row, one in enumerate(example_digests(tests)) if one in learnt and one not in repeated]
    return np.array(found, dtype=np.int64)
