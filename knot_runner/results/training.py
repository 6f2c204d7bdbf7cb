"""Results of distillations, of the temperature probe, and of runs on optimal transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from knot_runner.config.strict import require
from knot_runner.metrics import ACCURACY, METRICS
from knot_runner.results.base import (
    Amount,
    ClassNames,
    Count,
    Number,
    RunResult,
    Scores,
    SplitSizes,
    TermFacts,
    TrainTest,
    check_scores,
)


@dataclass
class KeptEpoch:
    """The epoch whose weights were kept, and the rule that selected it."""

    epoch: Amount
    select: Literal["best", "last"]


@dataclass
class BoundFacts:
    """The student's loss on distinct training and held-out texts of the transfer set, their ``gap``, and the gap minus
    that of the initial model; the bound itself is in ``bound.json``."""

    texts: Number
    train: Amount
    valid: Amount
    gap: float
    gap_less_start: float


@dataclass(kw_only=True)
class StagesResult(RunResult):
    """Models trained in stages: KNOT, its teachers alone, mutual learning. ``before``: metrics of the global model
    before distillation; ``teachers``: each on its own test set; ``baselines``: every teacher and their ensemble on the
    global model's test set; ``bias``: B_k by teacher [C]. ``parties``: of mutual learning; ``metrics`` and ``before``
    then are of the parties' models, each on its own test set."""

    datasets: dict[str, SplitSizes] = field()
    labels: ClassNames = field()
    before: Scores | None = None
    teachers: Scores | None = None
    baselines: Scores | None = None
    bias: dict[str, list[Amount]] | None = None
    kept_epochs: dict[str, KeptEpoch] | None = None
    bound: BoundFacts | None = None
    parties: list[str] | None = None
    selected_epoch: int | None = None
    rows: Any = None

    def __post_init__(self) -> None:
        require(bool(self.metrics) and bool(self.datasets), "metrics" if not self.metrics else "datasets", "is empty")
        check_scores("metrics", self.metrics)
        check_scores("before", self.before or {})
        for key in ("teachers", "baselines"):
            for name, row in (getattr(self, key) or {}).items():
                check_scores(f"{key}.{name}", {metric: {"": score} for metric, score in row.items()})
        points = self.labels.coordinates or []
        classes = len(self.labels.names)
        require(len(points) == classes >= 2, "labels", "has not coordinates for every class")
        require(len({len(point) for point in points}) == 1, "labels", "has coordinates of several lengths")
        for teacher, shares in (self.bias or {}).items():
            require(len(shares) == classes and sum(shares) > 0, f"bias.{teacher}", f"is not of {classes} classes")


@dataclass
class PhaseFacts:
    """A training phase of the student before the last one: its epochs and loss terms."""

    epochs: Number
    terms: dict[str, TermFacts]


@dataclass
class ReleasedFacts:
    """Information that a teacher's owner released beside its weights, and its size."""

    kind: str
    floats: Count
    bytes: Count


@dataclass
class SynthesisFacts:
    """Images synthesized from the teacher: how, how many, the last loss, and the information released for it."""

    kind: str
    images: Count
    loss: float
    released: ReleasedFacts


@dataclass(kw_only=True)
class DistillResult(StagesResult):
    """A distillation by loss terms. ``baselines``: all other models trained for it, on the student's test set."""

    terms: dict[str, TermFacts]
    phases: list[PhaseFacts] | None = None
    synthesis: SynthesisFacts | None = None


@dataclass(kw_only=True)
class ProbeResult(RunResult):
    """A temperature probe; its arrays are in ``probe.safetensors``."""

    temperatures: list[Amount]
    model: str = ""

    def __post_init__(self) -> None:
        positive = bool(self.temperatures) and min(self.temperatures) > 0
        require(positive, "temperatures", f"{self.temperatures} are not all above 0")


@dataclass
class Spent:
    """Privacy that a distance has spent; None: no limit."""

    epsilon: Amount | None
    delta: Amount


@dataclass(kw_only=True)
class DistanceResult(RunResult):
    """One federated Wasserstein distance after K ``iterations``, with the exact one and the closed form. ``sums``,
    ``values``, ``support`` [K]: per iteration; ``server_only`` [K], or [] with random t."""

    mode: Literal["exact", "approximate"]
    iterations: Number
    samples: list[Number]
    ratio: Number
    dimension: Number
    value: Amount
    exact: Amount
    closed_form: Amount
    support: list[Number]
    values: list[Amount]
    sums: list[Amount]
    server_only: list[Amount] | None = None
    spent: Spent | None = None

    def __post_init__(self) -> None:
        require(len(self.samples) == 2, "samples", "are not of two clients")
        for key in ("support", "values", "sums"):
            require(len(getattr(self, key)) == self.iterations, key, f"has not {self.iterations} iterations")
        require(len(self.server_only or []) in (0, self.iterations), "server_only", "is not of every iteration")


@dataclass(kw_only=True)
class MatrixResult(RunResult):
    """Squared distances [N, N] between N data sets or clients: symmetric, with a zero diagonal."""

    names: list[str]
    matrix: list[list[Amount]]
    solver: Literal["federated", "exact"]
    sizes: list[Count]
    groups: list[Count] | None = None
    pairs: Count = 0
    artifact: str = ""

    def __post_init__(self) -> None:
        count = len(self.names)
        require(count >= 2, "names", "are fewer than two")
        square = len(self.matrix) == count and all(len(row) == count for row in self.matrix)
        require(square, "matrix", f"is not {count} x {count}")
        for i, row in enumerate(self.matrix):
            right = row[i] == 0 and row == [other[i] for other in self.matrix]
            require(right, "matrix", "is not symmetric with a zero diagonal")
        require(len(self.sizes) == count, "sizes", f"are not of {count} data sets")
        require(self.groups is None or len(self.groups) == count, "groups", f"are not of {count} data sets")


@dataclass(kw_only=True)
class _Coresets(RunResult):
    points: Number
    clients: Number
    shape: list[Number]
    datasets: TrainTest = field()
    labels: ClassNames = field()
    distance: Literal["federated", "exact"]
    losses: list[Amount]

    def __post_init__(self) -> None:
        require(len(self.shape) in (1, 3), "shape", "is neither channels, height, width nor a number of features")
        require(bool(self.losses), "losses", "are none")
        check_scores("metrics", self.metrics)


@dataclass(kw_only=True)
class CoresetResult(_Coresets):
    """One coreset of all clients' data; ``classes_covered``: classes among the samples nearest to its points."""

    classes_covered: Number
    compared: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ALL" in self.metrics.get("distance", {}), "metrics.distance", "is not there")
        require(self.classes_covered <= len(self.labels.names), "classes_covered", "is more than there are classes")


@dataclass(kw_only=True)
class KnnResult(_Coresets):
    """One coreset per client; their union classifies by the nearest neighbor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for metric, keys in ((ACCURACY, {"ALL"}), (METRICS[ACCURACY].over_clients, {"weighted", "unweighted"})):
            require(keys <= set(self.metrics.get(metric, {})), f"metrics.{metric}", "is not there")
