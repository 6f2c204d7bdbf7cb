"""Settings of a text task: label space, preprocessing, and data sets with their roles and sources."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.plugins import Table, load
from knot_runner.config.settings.sizes import (
    NOT_NEGATIVE,
    Depth,
    Fraction,
    FractionOrNone,
    ItemCount,
    MaxExamples,
    ProportionOrNone,
    Seed,
    Spread,
    Tokens,
    at_least,
)
from knot_runner.config.strict import require
from knot_runner.util.errors import nearest

Role = Literal["local", "global", "transfer"]
#: ``local.format`` -> reader: function from a path (and, for csv, the delimiter) to records. Plug-ins may add readers.
TEXT_READERS: Table[Any] = Table("TEXT_READERS", {
    "csv": "knot_runner.data.readers:read_csv",
    "jsonl": "knot_runner.data.readers:read_jsonl",
    "dailydialog": "knot_runner.data.readers:read_dailydialog",
}, lambda where, reader: load("knot_runner.data.readers:checked_text_reader")(where, reader))  # fmt: skip


def missing_names(missing: str | list[str], optional: list[str]) -> list[str]:
    """Return the names of the data sets and files that may be missing.

    Args:
        missing: The setting ``task.missing``. A list is returned unchanged. For "skip", ``optional`` is returned. For
            "error", an empty list is returned.
        optional: The setting ``task.optional``.
    """
    if isinstance(missing, list):
        return missing
    if missing == "skip":
        return optional
    return []


def check_missing(missing: str | list[str], known: Collection[str]) -> None:
    """Check the names in the setting ``task.missing``. Nothing is checked if the setting is not a list.

    Args:
        missing: The setting. All names in the list must be in ``known``.
        known: Names of the data sets and files that may be missing.
    """
    if not isinstance(missing, list):
        return
    for name in missing:
        problem = f"{name!r} is not a data set or file that can be left out{nearest(name, known)}"
        require(name in known, "missing", problem)


def check_labels(key: str, names: list[str], coordinates: list[list[float]] | None) -> None:
    """Check the names and coordinates of labels. Call this function in a ``__post_init__``.

    Args:
        key: The setting that holds the names.
        names: Names of the labels: at least two, all different.
        coordinates: One point per label, or None. The points must be different and have the same dimension.
    """
    require(2 <= len(names) == len(set(names)), key, f"expected at least two different names, got {names}")
    if coordinates is None:
        return
    sizes = set(map(len, coordinates))
    fits = len(coordinates) == len(names) and len(sizes) == 1 and 0 not in sizes
    got = f"{len(coordinates)} points of dimension {' and '.join(map(str, sorted(sizes)))}"
    require(fits, "coordinates", f"expected {len(names)} points (one per label) of equal dimension, got {got}")
    equal = [name for name, point in zip(names, coordinates, strict=True) if coordinates.count(point) > 1]
    problem = f"each label needs its own point, but these labels share a point with another label: {', '.join(equal)}"
    require(not equal, "coordinates", problem)


@dataclass
class Labels:
    """The label space, with coordinates for transport costs."""

    #: label names in numeric order
    names: list[str]
    #: one point per label, for semantic distance and transport cost; null: equal distances
    coordinates: list[list[Spread]] | None
    #: points for transport costs: coordinates, one-hot vectors (sqrt(2) apart), or both concatenated (public SA code)
    support: Literal["semantic", "onehot", "hybrid"]

    def __post_init__(self) -> None:
        if self.coordinates is None:
            self.coordinates = [[0.0] * len(self.names) for _ in self.names]
            for number, point in enumerate(self.coordinates):
                point[number] = 1.0
        check_labels("names", self.names, self.coordinates)


@dataclass
class File:
    """One file of a split."""

    #: path relative to ``paths.data_dir``; may end in ``.gz``
    path: str
    #: column -> required value; other rows are ignored
    where: dict[str, Any] = field(default_factory=dict)
    #: expected number of rows in the file; null: unchecked
    rows: ItemCount | None = None


@dataclass
class TextColumns:
    """Names of CSV columns or JSON keys."""

    #: text, or first sentence of a pair
    text: str
    #: raw label; null for unlabeled data
    label: str | None = None
    #: second sentence of a pair
    pair: str | None = None
    #: dialogue ID in one or several columns; consecutive rows with equal IDs form a dialogue
    dialogue: str | list[str] | None = None
    #: name for ``partition.by`` -> columns that identify a client: {speaker: Speaker}
    clients: dict[str, str | list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.dialogue != [], "dialogue", "expected a column name. Use null if the data have no dialogues")
        for name, column in self.clients.items():
            key = f"clients.{name}"
            problem = f"'{name}' is a built-in value of partition.by. Use another name"
            require(column != [], key, "expected a column name. Set one, or remove this key")
            require(name not in ("user", "file", "dialogue"), key, problem)


@dataclass
class LocalSource:
    """A data set on disk.

    Splits in ``files``: train+valid+test, or pool (divided by ``task.split``), or train+heldout (heldout's halves
    become valid and test).
    """

    #: csv, jsonl, dailydialog, or the reader of a plug-in
    format: str
    #: split -> files
    files: dict[str, list[File]]
    #: columns of the files
    columns: TextColumns
    #: field separator of CSV files
    delimiter: str = ","

    def __post_init__(self) -> None:
        problem = f"expected one character (no space, quote or line end), such as ';', got {self.delimiter!r}"
        require(len(self.delimiter) == 1 and self.delimiter not in '"\r\n ', "delimiter", problem)
        is_read = self.format == "csv" or self.delimiter == ","
        require(is_read, "delimiter", "supported only with format=csv. Remove this key")


@dataclass
class HubSource:
    """A data set on the Hugging Face hub."""

    #: repository, as owner/name
    id: str
    #: commit hash, or a branch
    revision: str
    #: our split (train, valid, test, pool, heldout) -> split names on the hub
    splits: dict[str, list[str]]
    #: columns of the data set
    columns: TextColumns
    #: configuration name, if several exist
    config: str | None = None
    #: column -> required value; other rows are ignored
    where: dict[str, Any] = field(default_factory=dict)


@dataclass
class EmbeddedSource:
    """Generated texts."""

    #: number of texts
    rows: Annotated[ItemCount, at_least(20)]
    #: vocabulary of the texts
    domain: str
    #: share of each label, in the order of ``labels.names``; sums to 1
    shares: list[ProportionOrNone]
    #: seed for generation, independent of the run
    seed: Seed

    def __post_init__(self) -> None:
        require(abs(sum(self.shares) - 1) < 1e-6, "shares", f"expected a sum of 1, got {sum(self.shares):g}")


@dataclass
class SplitFile:
    """How ``task.split`` divides ``pool``, stratified by label."""

    #: share for validation
    valid: Fraction
    #: share for testing
    test: FractionOrNone
    #: seed of the split, independent of the run
    seed: Seed

    def __post_init__(self) -> None:
        require(self.valid + self.test < 1, "test", "valid + test leaves no training examples. Use a sum below 1")


@dataclass
class DatasetSettings:
    """The data set of one party, or the transfer set."""

    #: data of one party (local), data of the server (global), or the unlabeled transfer set
    role: Role
    #: raw label (quoted) -> label name; empty if they are equal
    labels: dict[str, str] = field(default_factory=dict)
    #: raw labels whose rows are removed after contexts are built
    drop: list[str] = field(default_factory=list)
    #: location on disk; null if unavailable
    local: LocalSource | None = None
    #: location on the Hugging Face hub; null if unavailable
    hub: HubSource | None = None
    #: generated text; null if unavailable
    embedded: EmbeddedSource | None = None
    #: [i, n]: use part i (from 0) of n consecutive parts of each split
    chunk: list[int] | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            fits = len(self.chunk) == 2 and 0 <= self.chunk[0] < self.chunk[1]
            require(fits, "chunk", f"expected [i, n] with 0 <= i < n, got {self.chunk}")


@dataclass
class TaskSettings:
    """A text task: label space, data sets with their roles, and preprocessing."""

    name: str
    #: single texts (sentiment), utterances in a dialogue (emotion), or sentence pairs (inference)
    kind: Literal["sentiment", "emotion", "inference"]
    #: generated texts (embedded), files below ``paths.data_dir``, or the Hugging Face hub
    source: Literal["embedded", "local", "hub"]
    #: label space
    labels: Labels
    #: data set name -> data of one party
    datasets: dict[str, DatasetSettings]
    #: split of data sets without published splits
    split: SplitFile
    #: maximum tokens per text, including [CLS] and [SEP]
    max_length: Tokens
    #: number of previous utterances appended, newest first
    context: Annotated[Depth, NOT_NEGATIVE]
    #: missing data to leave out, with a message: none (error), the data in ``optional`` (skip), or a list of local data
    #: sets and files
    missing: list[str] | Literal["error", "skip"]
    #: maximum rows per split, sampled with the seed and stratified by label; null keeps all
    max_examples: MaxExamples | None
    #: main metric in tables
    score: Literal["f1", "accuracy"]
    #: local data sets and files that ``missing=skip`` leaves out
    optional: list[str] = field(default_factory=list)
    #: sentence pairs for the bias probe: probe name -> templates and words (App. D.2)
    probe: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require("local" in [data.role for data in self.datasets.values()], "datasets", "no data set has role=local")
        for data in self.datasets.values():
            data.labels = data.labels or dict(zip(self.labels.names, self.labels.names, strict=True))
        check_missing(self.missing, self._removable())

    @property
    def may_be_missing(self) -> list[str]:
        """Return the names of the data sets and the paths of the files that may be missing.

        A run leaves out a data set if all of its files are missing.
        """
        known = self._removable()
        return [name for name in missing_names(self.missing, self.optional) if name in known]

    def _removable(self) -> list[str]:
        names = []
        paths = []
        for name, data in self.datasets.items():
            if data.role == "local":
                names.append(name)
            if data.local is not None:
                paths += [file.path for file in itertools.chain(*data.local.files.values())]
        return [*names, *dict.fromkeys(paths)]
