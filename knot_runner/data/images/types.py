"""Images with labels, a task of them, and their partition over clients. Plain arrays; nothing here knows of torch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from knot_runner.provenance.fingerprints import Opened


@dataclass(frozen=True, eq=False)
class Images:
    """``pixels`` [N, C, H, W]: uint8 (in units of 1/255) or float32 (0..1); ``labels`` [N] int64.

    ``users`` and ``files``: for each image the number of its writer and of the file it came from, or None where the
    source has none; ``user_names`` / ``file_names`` give numbers their names (shared by train and test).
    """

    pixels: np.ndarray
    labels: np.ndarray
    users: np.ndarray | None = None
    files: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of pixels, labels and writers, in order."""
        state = hashlib.sha256(f"{self.pixels.dtype} {self.pixels.shape}".encode())
        for array in (self.pixels, self.labels, self.users, self.files):
            state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def take(self, rows: np.ndarray) -> Images:
        """The images at ``rows`` (int [M]), in that order."""
        users, files = (None if a is None else a[rows] for a in (self.users, self.files))
        return Images(self.pixels[rows], self.labels[rows], users, files)


@dataclass(frozen=True, eq=False)
class ImageTask:
    """What is learnt, from which images. ``notes``: one line each that the user should see."""

    name: str
    classes: list[str]
    #: one point per class, or None where semantic distance is not measured
    coordinates: list[list[float]] | None
    train: Images
    test: Images
    #: per channel, in units of pixel values 0..1
    mean: list[float]
    std: list[float]
    source: str
    user_names: list[str] | None = None
    file_names: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    #: what was read of ``paths.data``; empty for other sources
    files: list[Opened] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        return tuple(self.train.pixels.shape[1:])

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of train and test: equal data, equal digest."""
        return hashlib.sha256(f"{self.train.digest} {self.test.digest}".encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rows of train and test each client has (ascending int64 rows; a row may be at several clients)."""

    names: list[str]
    train: list[np.ndarray]
    test: list[np.ndarray]
    notes: list[str] = field(default_factory=list)
    #: planted cluster of each client, where the partition has them
    groups: list[int] | None = None
