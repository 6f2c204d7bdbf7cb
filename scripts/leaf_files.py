"""Json files as LEAF writes them: a generated federation of writers at its sizes, of images that are mostly paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np

#: Of LEAF's FEMNIST: mean and standard deviation of a writer's images (its writers: 3,550; its images: 805,263).
IMAGES_MEAN, IMAGES_SD = 226.8, 88.9
CLASSES, PIXELS, WRITERS_A_FILE = 62, 784, 100
#: Every tenth image of a writer is for testing, as with LEAF's ``--tf 0.9``.
TEST_EVERY = 10


def write_leaf(folder: Path, writers: int, seed: int = 1) -> int:
    """``folder``/train and /test, unless they are there; the number of images.

    An image is a class' own strokes, an eighth of the pixels, on white paper, with a few gray levels of the writer's.
    """
    draws = np.random.default_rng(seed)
    sizes = np.clip(np.rint(draws.normal(IMAGES_MEAN, IMAGES_SD, writers)), 20, None).astype(int)
    done = folder / f"{writers}-writers"
    if done.exists():
        return int(sizes.sum())
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    strokes = draws.random((CLASSES, PIXELS)) < 1 / 8
    words = np.array([repr(value / 255) for value in range(256)], dtype=object)
    for number, first in enumerate(range(0, writers, WRITERS_A_FILE)):
        chosen = range(first, min(first + WRITERS_A_FILE, writers))
        images = {f"f{writer:04d}_00": _images(sizes[writer], strokes, words, draws) for writer in chosen}
        for part, rest in (("train", range(1, TEST_EVERY)), ("test", range(1))):
            _write(folder / part / f"all_data_{number}_{part}_9.json", images, set(rest))
    done.touch()
    return int(sizes.sum())


def _images(count: int, strokes: np.ndarray, words: np.ndarray, draws: np.random.Generator) -> list[tuple[str, int]]:
    """Text and label of each of a writer's images."""
    labels = draws.integers(0, CLASSES, count)
    levels = draws.integers(0, 120, (count, PIXELS))
    pixels = np.where(strokes[labels] ^ (draws.random((count, PIXELS)) < 0.02), levels, 255)
    return [(", ".join(row), int(label)) for row, label in zip(words[pixels].tolist(), labels, strict=True)]


def _write(path: Path, writers: dict[str, list[tuple[str, int]]], places: set[int]) -> None:
    """The images of ``writers`` whose place, modulo ten, is among ``places``."""
    chosen = {
        name: [image for place, image in enumerate(images) if place % TEST_EVERY in places]
        for name, images in writers.items()
    }
    names = ", ".join(f'"{name}"' for name in chosen)
    counts = ", ".join(str(len(images)) for images in chosen.values())
    with path.open("w", encoding="ascii") as file:
        file.write(f'{{"users": [{names}], "num_samples": [{counts}], "user_data": {{')
        for number, (name, images) in enumerate(chosen.items()):
            x = ", ".join(f"[{text}]" for text, _ in images)
            y = ", ".join(str(label) for _, label in images)
            file.write(f'{", " if number else ""}"{name}": {{"x": [{x}], "y": [{y}]}}')
        file.write("}}")
