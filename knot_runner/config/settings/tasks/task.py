"""Settings of a task: label space, data sets with their roles and sources, pre-processing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import NOT_NEGATIVE, Depth, Fraction, Seed, Spread
from knot_runner.config.strict import AtMost, Holds, require
from knot_runner.util.errors import nearest

Role = Literal["local", "global", "transfer"]
#: formats of text files that are read without plug-ins
TEXT_FORMATS = ("csv", "jsonl", "dailydialog")


def missing_names(missing: str | list[str], optional: list[str]) -> list[str]:
    """Returns the data sets, and files of texts, that ``missing`` (error, stop, skip, or names) allows to be absent."""
    if isinstance(missing, list):
        return missing
    return optional if missing == "skip" else []


def check_missing(missing: str | list[str], known: Collection[str], kinds: str = "data set") -> None:
    """Names in the setting ``missing`` must be of ``known``, the ``kinds`` of data that may be left out."""
    for name in missing if isinstance(missing, list) else []:
        require(name in known, "missing", f"{name!r} is no {kinds} that may be left out{nearest(name, known)}")


def equal_points(names: list[str], points: list[list[float]]) -> str | None:
    """``'a' and 'b'``: the first two of ``names`` that share one of ``points``; None where each has its own."""
    at: dict[tuple[float, ...], str] = {}
    for name, point in zip(names, points, strict=True):
        first = at.setdefault(tuple(point), name)
        if first != name:
            return f"{first!r} and {name!r}"
    return None


@dataclass
class Labels:
    """The label space: names, one coordinate vector each, and which support the transport cost is measured on."""

    #: of the labels, in the order of their numbers
    names: list[str]
    #: one point per label; distances between them are what semantic distance and transport cost. null = all labels are
    #: equally far apart
    coordinates: list[list[Spread]] | None
    #: semantic = the coordinates; onehot = every two labels sqrt(2) apart; hybrid = both joined (the public SA code)
    support: Literal["semantic", "onehot", "hybrid"]

    def __post_init__(self) -> None:
        require(len(self.names) >= 2, "names", "needs at least two labels")
        require(len(set(self.names)) == len(self.names), "names", f"names repeat: {self.names}")
        if self.coordinates is None:
            self.coordinates = [[float(row == column) for column in self.names] for row in self.names]
        require(
            len(self.coordinates) == len(self.names),
            "coordinates",
            f"{len(self.coordinates)} coordinates for {len(self.names)} labels; one for each is right",
        )
        sizes = sorted({len(point) for point in self.coordinates})
        require(
            len(sizes) == 1 and sizes[0] > 0, "coordinates", f"points of unequal length {sizes}; all alike is right"
        )
        pair = equal_points(self.names, self.coordinates)
        require(pair is None, "coordinates", f"labels {pair} share one point, so their cost would be 0")


@dataclass
class File:
    """One file, relative to ``paths.data_dir``; ``where`` keeps only rows whose columns have these values."""

    #: relative to ``paths.data_dir``; ``.gz`` is read as it is
    path: str
    #: column -> the value that the rows to be kept have there
    where: dict[str, Any] = field(default_factory=dict)
    #: rows the whole file has; another number found is an error. null = not known
    rows: Annotated[int, AtMost(10**8)] | None = None


@dataclass
class TextColumns:
    """Which columns (or JSON keys) hold what."""

    #: the text, or the first sentence of a pair
    text: str
    #: the raw label; null = the data set has none
    label: str | None = None
    #: second sentence of a pair (NLI)
    pair: str | None = None
    #: dialogue id, of one column or several ([Season, Episode, Dialogue_ID]); consecutive rows with one id are a
    #: dialogue, for contexts (ERC) and for ``partition.by=dialogue``
    dialogue: str | list[str] | None = None
    #: what else a client may be, by the name that ``partition.by`` gives it -> its columns: {speaker: Speaker}
    clients: dict[str, str | list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.dialogue != [], "dialogue", "names no column. Use null if the data have no dialogues")
        for name, column in self.clients.items():
            require(column != [], f"clients.{name}", "names no column. Remove it")
        for name in sorted({"user", "file", "dialogue"} & set(self.clients)):
            require(False, f"clients.{name}", "is a name that partition.by knows already; another one is right")


@dataclass
class LocalSource:
    """A data set on disk. ``files`` has train / valid / test, or ``pool`` (cut by ``split``), or ``heldout`` (halved
    into valid and test)."""

    #: csv, jsonl, dailydialog, or what a plug-in's reader is called
    format: str
    #: train, valid, test, pool or heldout -> files
    files: dict[str, list[File]]
    #: which columns hold what
    columns: TextColumns
    #: of csv: what stands between two fields
    delimiter: str = ","

    def __post_init__(self) -> None:
        fits = len(self.delimiter) == 1 and self.delimiter not in '"\r\n '
        require(fits, "delimiter", f"{self.delimiter!r} is not one character such as , ; | or a tab")
        require(self.format == "csv" or self.delimiter == ",", "delimiter", f"format={self.format} has none; csv has")


@dataclass
class HubSource:
    """A data set on the Hugging Face hub, pinned. ``splits``: ours (train, valid, test, pool, heldout) -> theirs."""

    #: owner/name on the hub
    id: str
    #: commit hash, or a branch, which is no pin
    revision: str
    #: ours (train, valid, test, pool, heldout) -> theirs
    splits: dict[str, list[str]]
    #: which columns hold what
    columns: TextColumns
    #: configuration of a data set that has several
    config: str | None = None
    #: column -> the value that the rows to be kept have there
    where: dict[str, Any] = field(default_factory=dict)


@dataclass
class EmbeddedSource:
    """Generated text: how many rows, the label shares of this party, and which domain words it uses."""

    #: how many texts are generated
    rows: Annotated[int, AtMost(10**8)]
    #: which domain's words the texts have
    domain: str
    #: share of each label, in the order of ``labels.names``; sums to 1
    shares: list[float]
    #: seed of this data set's own draws, apart from the run's seed
    seed: Seed

    def __post_init__(self) -> None:
        require(
            self.rows >= 20, "rows", f"{self.rows} rows cannot be split into train, valid and test; 20 is the least"
        )
        require(all(s >= 0 for s in self.shares), "shares", "a share is negative")
        require(abs(sum(self.shares) - 1) < 1e-6, "shares", f"sum to {sum(self.shares):g}; 1 is right")


@dataclass
class SplitFile:
    """Stratified, seeded cut of a pool: shares of valid and test (knot.md 1.6: 70 / 10.2 / 19.8, seed 2021)."""

    #: share of the pool that is held out for validation
    valid: Fraction
    #: share of the pool that is held out for the test
    test: Annotated[float, Holds(lambda value: 0 <= value < 1, "is not between 0 and 1")]
    #: of the cut, apart from the run's
    seed: Seed

    def __post_init__(self) -> None:
        require(self.valid + self.test < 1, "test", "valid + test leave nothing to train on")


@dataclass
class DatasetSettings:
    """One party's data: a role and where it comes from, per source."""

    #: local = a party's own; global = the server's; transfer = unlabeled, on which outputs are exchanged
    role: Role
    #: raw label (as in the file, written as text) -> label name; {} = the file has the labels' names
    labels: dict[str, str] = field(default_factory=dict)
    #: raw labels whose rows are left out, after contexts are built
    drop: list[str] = field(default_factory=list)
    #: as files; null = not to be had so
    local: LocalSource | None = None
    #: on the Hugging Face hub; null = not to be had so
    hub: HubSource | None = None
    #: as generated text; null = not to be had so
    embedded: EmbeddedSource | None = None
    #: [i, n]: the i-th (from 0) of n consecutive parts of every split, after dropping
    chunk: list[int] | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            fits = len(self.chunk) == 2 and 0 <= self.chunk[0] < self.chunk[1]
            require(fits, "chunk", f"{self.chunk} is not [i, n] with 0 <= i < n")


@dataclass
class TaskSettings:
    """What is learned: label space, data sets with their roles, pre-processing."""

    name: str
    #: what the labels are, which says how a text is read: alone, in its dialogue, or as a pair
    kind: Literal["sentiment", "emotion", "inference"]
    #: where the texts come from: generated, files below ``paths.data_dir``, or the Hugging Face hub
    source: Literal["embedded", "local", "hub"]
    #: the labels, and how far apart they are
    labels: Labels
    #: name of a data set -> one party's data
    datasets: dict[str, DatasetSettings]
    #: how data sets that come as one pool are cut
    split: SplitFile
    #: tokens a text is cut to, [CLS] and [SEP] included
    max_length: int
    #: previous utterances put behind the current one, newest first (ERC; 0 = utterance only)
    context: Annotated[Depth, NOT_NEGATIVE]
    #: what is left out, which is said, when it is not there: error = nothing; skip = what ``optional`` lists; or a list
    #: of local data sets, none of whose files is there, and of files (as ``local.files`` has them) of any data set
    missing: list[str] | Literal["error", "skip"]
    #: rows per split, at most (a seeded, label-stratified subset); null = all
    max_examples: int | None
    #: which of the table's measures is the headline: f1 or accuracy
    score: Literal["f1", "accuracy"]
    #: local data sets and files that ``missing=skip`` stands for: those that not everybody can get
    optional: list[str] = field(default_factory=list)
    #: paired sentences: probe name -> templates and the words put into them (App. D.2)
    probe: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(8 <= self.max_length <= 512, "max_length", f"{self.max_length} is outside 8..512 (BERT's positions)")
        require(
            self.max_examples is None or self.max_examples >= 10,
            "max_examples",
            f"{self.max_examples} rows are too few; 10 is the least",
        )
        require("local" in [data.role for data in self.datasets.values()], "datasets", "none has role local")
        for data in self.datasets.values():
            data.labels = data.labels or {name: name for name in self.labels.names}
        check_missing(self.missing, self._removable(), "data set or file")

    @property
    def may_be_missing(self) -> list[str]:
        """Local data sets that are left out when none of their files is there, and files that are, one by one."""
        known = self._removable()
        return [name for name in missing_names(self.missing, self.optional) if name in known]

    def _removable(self) -> list[str]:
        names = [name for name, data in self.datasets.items() if data.role == "local"]
        sources = [data.local for data in self.datasets.values() if data.local is not None]
        files = [file.path for source in sources for own in source.files.values() for file in own]
        return [*names, *dict.fromkeys(files)]
