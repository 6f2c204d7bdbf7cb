"""Data classes: tasks of labeled texts or images, and partitions among clients. Arrays are NumPy arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.text_tasks import Labels, Role
from knot_runner.provenance.fingerprints import Opened

TEXT_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class Examples:
    """N texts with labels.

    Attributes:
        texts: The N texts.
        pairs: N second sentences, for tasks on sentence pairs; otherwise None.
        labels: Index of each text's label, int64 of shape [N]; -1 for a text without a label.
        clients: A dict from kind of client, such as ``speaker``, to a list of N names: the client of each text. A name
            is None for a text without a client.
        users: None if no text has a client. Otherwise, the index of each text's client, int64 of shape [N]; -1 for a
            text without a client. All indices refer to clients of the same kind.
    """

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray
    clients: dict[str, list[str | None]] = field(default_factory=dict)
    users: np.ndarray | None = None
    #: always None: clients of texts are never files
    files: None = None

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def digest(self) -> str:
        """Return the sha256 (hex) of all texts, pairs and labels, in order."""
        state = hashlib.sha256(b"pairs" if self.pairs is not None else b"single")
        for text in [*self.texts, *(self.pairs or [])]:
            content = text.encode()
            state.update(len(content).to_bytes(8, "little") + content)
        # Clients are not included: they determine who holds a text, not what is learned from it.
        state.update(np.ascontiguousarray(self.labels, dtype="<i8").tobytes())
        return state.hexdigest()

    def take(self, rows: np.ndarray) -> Examples:
        """Return the examples at the row numbers ``rows``, in that order."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in rows]
        clients = {}
        for kind, names in self.clients.items():
            clients[kind] = [names[i] for i in rows]
        return Examples([self.texts[i] for i in rows], pairs, self.labels[rows], clients, _rows_of(self.users, rows))

    def unlabeled(self) -> Examples:
        """Return the same texts with all labels set to -1, as in KNOT's transfer set (section 3)."""
        return Examples(self.texts, self.pairs, np.full(len(self), UNLABELED, dtype=np.int64))


def _rows_of(array: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if array is None else array[rows]


@dataclass(frozen=True, eq=False)
class Dataset:
    """The texts or images of one party.

    ``splits`` has the keys train, valid and test; some may be missing. A transfer set has no test split and no labels.
    """

    name: str
    role: Role
    splits: dict[str, Examples | Images]


@dataclass(frozen=True, eq=False)
class PartyTask:
    """A task that is divided among parties: the labels, and the texts or images of each party.

    ``notes``: messages for the user, for example about missing data.
    """

    name: str
    labels: Labels
    datasets: dict[str, Dataset]
    source: str
    notes: list[str] = field(default_factory=list)
    #: files read below ``paths.data_dir``; empty for other sources
    files: list[Opened] = field(default_factory=list)
    #: number of rows of each file (relative to ``paths.data_dir``) or hub split, which reveals a shortened file
    rows: dict[str, int] = field(default_factory=dict)
    #: digest of the source data, if the run's seed determines the division among the parties; "" if each party is a
    #: data set of the source
    read: str = ""

    @property
    def classes(self) -> list[str]:
        """Return the names of the labels."""
        return self.labels.names

    @property
    def coordinates(self) -> list[list[float]]:
        """Return the coordinates of each label."""
        return self.labels.coordinates

    @property
    def source_digest(self) -> str:
        """Return the sha256 (hex) of the data before any division that depends on the run's seed."""
        return self.read or self.digest

    @cached_property
    def digest(self) -> str:
        """Return one sha256 (hex) of the names, roles and contents of all data sets."""
        lines = []
        for name, data in self.datasets.items():
            lines += [f"{name} {data.role} {split} {part.digest}" for split, part in data.splits.items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Images:
    """N images with labels.

    Attributes:
        pixels: Array of shape [N, C, H, W]: uint8 from 0 to 255, or float32 from 0 to 1.
        labels: Class of each image, int64 of shape [N].
        users: Position of each image's writer in the task's ``user_names``, or -1 if unknown. None if the source has no
            writers.
        files: Position of each image's file in the task's ``file_names``. None if the source has no files.
    """

    pixels: np.ndarray
    labels: np.ndarray
    users: np.ndarray | None = None
    files: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def digest(self) -> str:
        """Return the sha256 (hex) of ``pixels``, ``labels``, ``users`` and ``files``, in order."""
        state = hashlib.sha256(f"{self.pixels.dtype} {self.pixels.shape}".encode())
        for array in (self.pixels, self.labels, self.users, self.files):
            state.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def take(self, rows: np.ndarray) -> Images:
        """Return the images at the row numbers ``rows``, in that order."""
        return Images(self.pixels[rows], self.labels[rows], _rows_of(self.users, rows), _rows_of(self.files, rows))

    def unlabeled(self) -> Images:
        """Return the same images with all labels set to -1, as in KNOT's transfer set (section 3)."""
        return replace(self, labels=np.full(len(self), UNLABELED, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class ImageParts:
    """The images that a reader returns. ``test`` is None if the source has no test set."""

    train: Images
    test: Images | None = None
    user_names: list[str] | None = None
    file_names: list[str] | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class ImageTask:
    """An image task: the classes, and their train and test images.

    ``notes``: messages for the user.
    """

    name: str
    classes: list[str]
    #: one point per class; None if semantic distance is not measured
    coordinates: list[list[float]] | None
    train: Images
    test: Images
    #: mean of each channel, for pixel values from 0 to 1
    mean: list[float]
    #: standard deviation of each channel, for pixel values from 0 to 1
    std: list[float]
    source: str
    user_names: list[str] | None = None
    file_names: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    #: files read below ``paths.data_dir``; empty for other sources
    files: list[Opened] = field(default_factory=list)
    #: ``partition.by`` -> name of a client, singular and plural
    called: dict[str, tuple[str, str]] = field(
        default_factory=lambda: {"user": ("writer", "writers"), "file": ("file", "files")}
    )
    #: transfer set of a distillation: unlabeled images of another data set, in the shape and type of ``train``
    transfer: Images | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of one image: (channels, height, width)."""
        return tuple(self.train.pixels.shape[1:])

    @cached_property
    def digest(self) -> str:
        """Return one sha256 (hex) of the train images, the test images and, if there is one, the transfer set."""
        digests = f"{self.train.digest} {self.test.digest}"
        if self.transfer is not None:
            digests += f" {self.transfer.digest}"
        return hashlib.sha256(digests.encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Partition:
    """The row numbers of each client's examples in the train set and the test set of the task.

    Row numbers are int64 and ascending. Several clients may have the same example.
    """

    names: list[str]
    train: list[np.ndarray]
    test: list[np.ndarray]
    notes: list[str] = field(default_factory=list)
    #: cluster that the partition assigns to each client; None if the partition has no clusters
    groups: list[int] | None = None
    #: training rows that each client holds out for model selection; None if no client holds out rows
    valid: list[np.ndarray] | None = None


def repeated_note(name: str, train: Examples | Images, test: Examples | Images) -> list[str]:
    """Return a list with a note if more than half of the test examples are also training examples; otherwise []."""
    known = set(_content_hashes(train))
    share = sum(content in known for content in _content_hashes(test)) / max(len(test), 1)
    # Many repeated examples reward memorizing. A few are normal, because some short utterances repeat in any text data.
    if share <= 0.5:
        return []
    kind = "images" if isinstance(test, Images) else "texts"
    return [f"{name}: {share:.0%} of the test {kind} are also in the training set, so test scores are too optimistic"]


def _content_hashes(part: Examples | Images) -> Iterator[int]:
    """Yield a hash of each example without its label. Hashes are comparable only within this process."""
    if isinstance(part, Images):
        return (hash(image.tobytes()) for image in part.pixels)
    return map(hash, zip(part.texts, part.pairs or [""] * len(part), strict=True))
