"""What ``result.json`` holds, by kind of run: one dataclass each, built strictly when written and when read.

Reports read the plain dictionary; building the dataclass is the check that it can be believed: every value is of its
type and within what is possible, and values that belong together agree.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.strict import Between, build, require
from knot_runner.metrics import METRICS
from knot_runner.util.errors import UserError

Share = Annotated[float, Between(0.0, 1.0)]
#: A distance, loss or time: finite, not negative.
Amount = Annotated[float, Between(0.0, math.inf)]
Count = Annotated[int, Between(0, math.inf)]
#: At least one.
Number = Annotated[int, Between(1, math.inf)]
#: Metric -> data set (or ALL) -> value.
Scores = dict[str, dict[str, Any]]


@dataclass(kw_only=True)
class RunResult:
    """What every result says, whatever the kind of run; what is absent was not said by the version that wrote it."""

    status: Literal["done", "diverged"]
    task: str
    method: str
    seed: int
    kind: str = "distillation"
    source: str = ""
    data: Any = None
    device: str = ""
    threads: int = 1
    code: str = ""
    plugins: Any = None
    versions: Any = None
    files: Any = None
    notes: Any = None
    seconds: Any = None
    label_counts: Any = None
    #: of a fused sweep: up to how many other jobs its seconds waited for
    beside: Any = None
    #: where training diverged (non-finite loss or weights)
    diverged: Any = None
    run_id: str = ""
    digest: Any = None


@dataclass
class SplitSizes:
    """Examples of one data set; ``role`` of its party."""

    role: str = ""
    train: Amount | None = None
    valid: Amount | None = None
    test: Amount | None = None


@dataclass
class TrainTest:
    """Images in all."""

    train: Count
    test: Count


@dataclass
class ClassNames:
    """Classes by their names, [C], and their ``coordinates`` [C, d], where they have any."""

    names: list[str]
    coordinates: list[list[float]] | None = None


@dataclass
class KeptEpoch:
    """The epoch whose weights were kept, and by which rule."""

    epoch: Amount
    select: Literal["best", "last"]


@dataclass(kw_only=True)
class DistillationResult(RunResult):
    """KNOT, or its teachers alone. ``before``: the global model before distillation; ``teachers``: each on its own
    test set; ``bias``: B_k by teacher [C]."""

    metrics: Scores
    datasets: dict[str, SplitSizes]
    labels: ClassNames
    before: Scores | None = None
    teachers: Scores | None = None
    bias: dict[str, list[Amount]] | None = None
    kept_epochs: dict[str, KeptEpoch] | None = None
    selected_epoch: Any = None
    rounds_to_target: Any = None
    rows: Any = None

    def __post_init__(self) -> None:
        require(bool(self.metrics) and bool(self.datasets), "metrics" if not self.metrics else "datasets", "is empty")
        check_scores("metrics", self.metrics)
        check_scores("before", self.before or {})
        for teacher, row in (self.teachers or {}).items():
            check_scores(f"teachers.{teacher}", {metric: {"": score} for metric, score in row.items()})
        points, classes = self.labels.coordinates, len(self.labels.names)
        require(points is not None and len(points) == classes >= 2, "labels", "has not coordinates for every class")
        require(len({len(point) for point in points}) == 1, "labels", "has coordinates of several lengths")
        for teacher, shares in (self.bias or {}).items():
            require(len(shares) == classes and sum(shares) > 0, f"bias.{teacher}", f"is not of {classes} classes")


@dataclass
class BestRound:
    """The highest accuracy, and rounds trained until then."""

    accuracy: Share
    round: Count


@dataclass
class ClusterFacts:
    """Clusters of the clients: the cluster of each, sizes, adjusted Rand index to planted groups, eigenvalues."""

    graph: str
    count: Count
    sizes: list[Number]
    labels: list[int]
    eigenvalues: list[Amount]
    ari: Annotated[float, Between(-1.0, 1.0)] | None = None
    artefacts: Any = None

    def __post_init__(self) -> None:
        found = [self.labels.count(cluster) for cluster in range(self.count)]
        require(self.sizes == found and sum(found) == len(self.labels), "sizes", "do not fit the labels")


@dataclass(kw_only=True)
class FederatedResult(RunResult):
    """A federated run. ``rounds_to_target``: rounds trained until ``target`` is met."""

    metrics: Scores
    datasets: TrainTest
    labels: ClassNames
    rounds: Number
    clients: Number
    best: BestRound
    target: Share | None = None
    rounds_to_target: Number | None = None
    rounds_count: Any = None
    clusters: ClusterFacts | None = None
    engine: Any = None
    precision: Any = None
    model: Any = None
    parameters: Any = None

    def __post_init__(self) -> None:
        for metric in ("accuracy", "f1", "loss", "tempered_loss"):
            require("ALL" in self.metrics.get(metric, {}), f"metrics.{metric}", "is not there")
        check_scores("metrics", self.metrics)
        reached = self.rounds_to_target is None or self.rounds_to_target <= self.rounds
        require(reached, "rounds_to_target", f"{self.rounds_to_target} is more than {self.rounds} rounds")
        labels = self.clusters.labels if self.clusters else [0] * self.clients
        require(len(labels) == self.clients, "clusters.labels", f"are not of {self.clients} clients")


@dataclass(kw_only=True)
class ProbeResult(RunResult):
    """A temperature probe; its arrays are in ``probe.safetensors``."""

    temperatures: list[Amount]
    labels: Any = None
    model: Any = None

    def __post_init__(self) -> None:
        positive = bool(self.temperatures) and min(self.temperatures) > 0
        require(positive, "temperatures", f"{self.temperatures} are not all above 0")


@dataclass
class DistanceSeconds:
    """Seconds of the whole run, of the federated distance and of the exact one."""

    total: Amount
    federated: Amount
    exact: Amount


@dataclass(kw_only=True)
class DistanceResult(RunResult):
    """One federated Wasserstein distance after K ``iterations``, beside the exact one and the closed form. ``sums``,
    ``values``, ``support`` [K]: of every iteration; ``server_only`` [K], or [] with random t."""

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
    seconds: DistanceSeconds
    server_only: list[Amount] | None = None
    spent: Any = None

    def __post_init__(self) -> None:
        require(len(self.samples) == 2, "samples", "are not of two clients")
        for key in ("support", "values", "sums"):
            require(len(getattr(self, key)) == self.iterations, key, f"has not {self.iterations} iterations")
        require(len(self.server_only or []) in (0, self.iterations), "server_only", "is not of every iteration")


@dataclass
class MatrixSeconds:
    """Seconds of the whole run, and of all pairs' distances."""

    total: Amount
    distances: Amount


@dataclass(kw_only=True)
class MatrixResult(RunResult):
    """Squared distances [N, N] between N data sets or clients: symmetric, with a zero diagonal."""

    names: list[str]
    matrix: list[list[Amount]]
    solver: Literal["federated", "exact"]
    sizes: list[Count]
    seconds: MatrixSeconds
    groups: list[Count] | None = None
    pairs: Any = None
    artefact: Any = None

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


@dataclass
class CoresetSeconds:
    """Seconds of the whole run, and of the gradient descent."""

    total: Amount
    descent: Amount


@dataclass(kw_only=True)
class _Coresets(RunResult):
    labels: ClassNames
    points: Number
    clients: Number
    shape: list[Number]
    datasets: TrainTest
    distance: Literal["federated", "exact"]
    losses: list[Amount]
    seconds: CoresetSeconds
    metrics: Scores

    def __post_init__(self) -> None:
        require(len(self.shape) == 3, "shape", "is not channels, height, width")
        require(bool(self.losses), "losses", "are none")
        check_scores("metrics", self.metrics)


@dataclass(kw_only=True)
class CoresetResult(_Coresets):
    """One coreset of all clients' data; ``classes_covered``: classes among the samples nearest to its points."""

    classes_covered: Number
    compared: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ALL" in self.metrics.get("distance", {}), "metrics.distance", "is not there")
        require(self.classes_covered <= len(self.labels.names), "classes_covered", "is more than there are classes")


@dataclass(kw_only=True)
class KnnResult(_Coresets):
    """A coreset per client; all of them classify by the nearest neighbour."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for metric, keys in (("accuracy", {"ALL"}), ("f1", {"ALL"}), ("client_accuracy", {"weighted", "unweighted"})):
            require(keys <= set(self.metrics.get(metric, {})), f"metrics.{metric}", "is not there")


#: Kind of run -> what its result must be; a plug-in's family answers for its own.
RESULTS: dict[str, type[RunResult]] = {
    "distillation": DistillationResult,
    "federated": FederatedResult,
    "probe": ProbeResult,
    "distance": DistanceResult,
    "matrix": MatrixResult,
    "coreset": CoresetResult,
    "knn": KnnResult,
}


def check_scores(key: str, scores: Scores) -> None:
    """In a ``__post_init__``: every value of a metric of the table is a number within what the metric can take."""
    for metric, row in scores.items():
        for name, value in row.items() if metric in METRICS else ():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            possible = number and math.isfinite(value) and 0 <= value <= METRICS[metric].top
            require(possible, f"{key}.{metric}.{name}", f"{value!r} is no {METRICS[metric].title}")


def kind_problem(result: dict[str, Any]) -> str:
    """What is wrong with ``result``, read from ``result.json``, as that of its kind; "" when nothing is.

    A diverged run has no numbers to check. Keys that this version does not know are left alone.
    """
    cls = RESULTS.get(result.get("kind", "distillation"), RunResult)
    if result["status"] == "diverged":
        cls = RunResult
    names = {field.name for field in dataclasses.fields(cls)}
    try:
        build(cls, {key: value for key, value in result.items() if key in names}, "")
    except UserError as problem:
        return str(problem)
    return ""


def check_written(result: dict[str, Any]) -> None:
    """Raises :class:`ValueError` for a result that a run of ours must not write: a value that cannot be, or a key that
    its dataclass does not have."""
    cls = RESULTS.get(result.get("kind", "distillation"))
    if cls is None:  # a plug-in's family
        return
    unknown = set(result) - {field.name for field in dataclasses.fields(cls)}
    problem = f"unknown keys {sorted(unknown)}" if unknown else kind_problem(result)
    if problem:
        raise ValueError(f"a result that {cls.__name__} does not allow: {problem}")
