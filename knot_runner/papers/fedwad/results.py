"""Results of runs on optimal transport: a federated distance, distances between data sets, coresets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from knot_runner.config.strict import require
from knot_runner.metrics import ACCURACY, METRICS
from knot_runner.results.base import Amount, ClassNames, Count, Number, RunResult, TrainTest, check_scores


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
