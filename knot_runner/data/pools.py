"""A task of texts as one pool of labelled examples, which a partition deals to clients as it deals images."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from knot_runner.data.tasks import Examples, PartyTask
from knot_runner.provenance.fingerprints import Opened


@dataclass(frozen=True, eq=False)
class PooledTexts:
    """One split of several data sets, one after another; ``users`` int64 [N]: the data set of each text, by number."""

    examples: Examples
    users: np.ndarray
    #: texts are in no files of clients
    files: None = None

    @property
    def labels(self) -> np.ndarray:
        """int64 [N]"""
        return self.examples.labels

    def __len__(self) -> int:
        return len(self.examples)

    def take(self, rows: np.ndarray) -> PooledTexts:
        """The texts at ``rows`` (int [M]), in that order."""
        return PooledTexts(self.examples.take(rows), self.users[rows])


@dataclass(frozen=True, eq=False)
class TextPool:
    """All labelled texts of a task; to a partition what :class:`~knot_runner.data.tasks.ImageTask` is.

    The transfer set, which has no labels, and the valid parts, since nothing is chosen by them, are not in it.
    """

    name: str
    classes: list[str]
    coordinates: list[list[float]] | None
    train: PooledTexts
    test: PooledTexts
    source: str
    digest: str
    user_names: list[str]
    #: all of the task, with the transfer set
    whole: PartyTask
    file_names: None = None
    notes: list[str] = field(default_factory=list)
    files: list[Opened] = field(default_factory=list)
    #: ``partition.by`` -> what a client is called, singular and plural
    called: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {"user": ("data set", "data sets"), "file": ("file", "files")}
    )


def pool_texts(task: PartyTask) -> TextPool:
    """The labelled data sets of ``task``, those that have a test part: local ones and the global one, in its order."""
    names = [name for name, data in task.datasets.items() if data.role != "transfer" and "test" in data.splits]
    train, test = (_pooled([task.datasets[name].splits[split] for name in names]) for split in ("train", "test"))
    return TextPool(
        name=task.name,
        classes=task.labels.names,
        coordinates=task.labels.coordinates,
        train=train,
        test=test,
        source=task.source,
        digest=task.digest,
        user_names=names,
        whole=task,
        notes=task.notes,
        files=task.files,
    )


def _pooled(parts: list[Examples]) -> PooledTexts:
    texts = [text for part in parts for text in part.texts]
    pairs = None
    if parts[0].pairs is not None:
        pairs = [pair for part in parts for pair in part.pairs or []]
    labels = np.concatenate([part.labels for part in parts])
    users = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return PooledTexts(Examples(texts, pairs, labels), users)
