"""What a task hands on: texts with labels, data sets with splits, and the task that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from knot_runner.config.settings import Labels, Role
from knot_runner.provenance.fingerprints import Opened

TEXT_SPLITS = ("train", "valid", "test")
UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class Examples:
    """N texts, their second sentences if the task is about pairs, and N labels (int64; -1 = unlabelled)."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of all texts, pairs and labels, in order."""
        state = hashlib.sha256(b"pairs" if self.pairs is not None else b"single")
        for text in (*self.texts, *(self.pairs or ())):
            content = text.encode()
            state.update(len(content).to_bytes(8, "little") + content)
        state.update(np.ascontiguousarray(self.labels, dtype="<i8").tobytes())
        return state.hexdigest()

    def take(self, rows: np.ndarray) -> Examples:
        """The examples at ``rows`` (int [M]), in that order."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in rows]
        return Examples([self.texts[i] for i in rows], pairs, self.labels[rows])

    def unlabelled(self) -> Examples:
        """The same texts with every label -1: what a transfer set shows (KNOT section 3: its labels are not used)."""
        return Examples(self.texts, self.pairs, np.full(len(self), UNLABELLED, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Dataset:
    """One party's data. ``splits`` has train, valid and test; a transfer set has no test and no labels."""

    name: str
    role: Role
    splits: dict[str, Examples]


@dataclass(frozen=True, eq=False)
class TextTask:
    """What is learnt, from which data. ``notes``: one line each that the user should see (left out, generated, ...)."""

    name: str
    labels: Labels
    datasets: dict[str, Dataset]
    source: str
    notes: list[str] = field(default_factory=list)
    #: what was read of ``paths.data``; empty for other sources
    files: list[Opened] = field(default_factory=list)
    #: rows found in each file (from ``paths.data`` on) or hub split: rows lost at a file's end show nowhere else
    rows: dict[str, int] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of every data set's name, role and content: equal data, equal digest."""
        return _digest(
            f"{name} {data.role} {split} {examples.digest}"
            for name, data in self.datasets.items()
            for split, examples in data.splits.items()
        )


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
