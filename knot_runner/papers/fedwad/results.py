"""Results of optimal transport runs, and their summaries for the terminal.

The runs compute a federated distance, distances between data sets, or coresets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from rich.console import Group

from knot_runner.config.strict import require
from knot_runner.report.records.run_summary import SummaryRow, bold, run_view
from knot_runner.results import Amount, ClassNames, Count, Number, RunResult, TrainTest, check_scores


@dataclass
class Spent:
    """The privacy loss (epsilon, delta) of a distance run. ``epsilon`` is None if it has no upper bound."""

    epsilon: Amount | None
    delta: Amount


@dataclass(kw_only=True)
class DistanceResult(RunResult):
    """Result of a run that computes one federated Wasserstein distance.

    Attributes:
        value: FedWaD's distance after all K ``iterations``.
        exact: The exact distance between the two samples.
        closed_form: The distance between the distributions from which the samples were drawn.
        values: FedWaD's distance after each iteration, shape [K].
        sums: The sum A of four distances after each iteration, shape [K] (Theorem 2).
        server_only: The server's estimate of the distance after each iteration, shape [K] (Theorem 3). The
            estimate uses no distances from the clients. Empty if t, the position on the geodesic, is random.
        support: The number of points of the interpolating measure after each iteration, shape [K].
    """

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
        require(len(self.samples) == 2, "samples", "expected two sizes, one per client")
        for key in ("support", "values", "sums"):
            require(
                len(getattr(self, key)) == self.iterations, key, f"expected one value per iteration ({self.iterations})"
            )
        require(
            len(self.server_only or []) in (0, self.iterations),
            "server_only",
            "expected one value per iteration, or none",
        )


@dataclass(kw_only=True)
class MatrixResult(RunResult):
    """Result of a run that computes the squared distances between N data sets or clients.

    ``matrix`` [N, N] is symmetric with a zero diagonal.
    """

    names: list[str]
    matrix: list[list[Amount]]
    solver: Literal["federated", "exact"]
    sizes: list[Count]
    groups: list[Count] | None = None
    pairs: Count = 0
    artifact: str = ""

    def __post_init__(self) -> None:
        count = len(self.names)
        require(count >= 2, "names", "expected at least two data sets")
        square = len(self.matrix) == count and all(len(row) == count for row in self.matrix)
        require(square, "matrix", f"expected a matrix of {count} x {count}")
        matrix = np.array(self.matrix)
        right = not matrix.diagonal().any() and bool((matrix == matrix.T).all())
        require(right, "matrix", "expected a symmetric matrix with a zero diagonal")
        for key in ("sizes", "groups"):
            values = getattr(self, key)
            require(values is None or len(values) == count, key, f"expected one value per data set ({count})")

    @property
    def distances(self) -> np.ndarray:
        """Return the squared distance of each of the N (N - 1) / 2 pairs."""
        return np.array(self.matrix)[np.triu_indices(len(self.names), 1)]

    def by_kind(self) -> dict[str, np.ndarray]:
        """Return a dict from each kind of pair to the squared distances of the pairs of this kind.

        The kinds are all pairs, pairs within a group, and pairs between groups. A kind without pairs is omitted.
        """
        distances = self.distances
        kinds = {"all pairs": distances}
        if self.groups is not None:
            rows, columns = np.array(self.groups)[np.array(np.triu_indices(len(self.names), 1))]
            kinds |= {"in one planted group": distances[rows == columns], "of two groups": distances[rows != columns]}
        return {title: values for title, values in kinds.items() if len(values)}


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
        require(len(self.shape) in (1, 3), "shape", "expected [channels, height, width] or [features]")
        require(bool(self.losses), "losses", "expected at least one loss")
        check_scores("metrics", self.metrics)


@dataclass(kw_only=True)
class CoresetResult(_Coresets):
    """Result of a run that learns one coreset of all clients' data.

    ``classes_covered``: the number of different labels among the coreset's points. A point has the label of its nearest
    sample.
    """

    classes_covered: Number
    compared: Count = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ALL" in self.metrics.get("distance", {}), "metrics.distance", "missing")
        require(
            self.classes_covered <= len(self.labels.names), "classes_covered", "expected at most the number of classes"
        )


@dataclass(kw_only=True)
class KnnResult(_Coresets):
    """Result of a run that learns one coreset per client, and classifies by the nearest point among all coresets."""


# ---------------------------------------------------------------------------------------------------------- summaries

#: Above this number of data sets, the range of distances is shown instead of a grid.
_MAX_SHOWN = 6
MATRIX_SOLVERS = {"federated": "FedWaD, approximate", "exact": "exact optimal transport, centralized"}
DISTANCE_NAMES = {"federated": "the federated distance", "exact": "the exact distance, not federated"}


def distance_summary(name: str, result: DistanceResult) -> Group:
    """Return the terminal summary of a distance run: the FedWaD, exact and closed-form distances.

    The FedWaD and closed-form distances are also shown relative to the exact distance.
    """
    exact = result.exact
    rows: list[SummaryRow] = []
    for title, value, spent in (
        (f"federated, after {result.iterations} iterations", result.value, result.seconds.federated),
        ("exact, all samples at one place", exact, result.seconds.exact),
        ("closed form of the distributions", result.closed_form, None),
    ):
        gap = f"{100 * (value / exact - 1):+.3g}%" if exact and value != exact else ""
        rows.append((title, [bold(f"{value:.5g}"), gap, "" if spent is None else f"{spent:.3g} s"]))
    lines = [
        f"{' and '.join(map(str, result.samples))} samples in {result.dimension} dimensions; {result.mode} measures of "
        f"{result.support[-1]} points"
    ]
    if privacy := result.spent:
        lines.append(f"each client has spent epsilon {privacy.epsilon:g}, delta {privacy.delta:g} in all")
    return run_view(name, result, ("2-Wasserstein distance", "value", "relative to exact", "time"), rows, lines)


# -------------------------------------------------------------------------------------------------- between data sets


def matrix_summary(name: str, result: MatrixResult) -> Group:
    """Return the terminal summary of the distances between data sets.

    For many data sets, the summary has only the smallest, median and largest distance of each kind of pair in
    :meth:`MatrixResult.by_kind`.
    """
    samples = " to ".join(map(str, sorted({min(result.sizes), max(result.sizes)})))
    line = (
        f"{MATRIX_SOLVERS[result.solver]}; {result.pairs} pairs of {len(result.names)} data sets, {samples} samples "
        f"each; {result.seconds.distances:.3g} s"
    )
    heads = ["pairs", "smallest", "median", "largest"]
    rows = []
    if len(result.names) <= _MAX_SHOWN:
        heads = result.names
        for i, first in enumerate(heads):
            texts = list(map("{:,.1f}".format, result.matrix[i]))
            texts[i] = "-"
            rows.append((first, texts))
    else:
        for title, values in result.by_kind().items():
            quantiles = np.quantile(values, (0, 0.5, 1))
            rows.append((title, [str(len(values)), *map("{:,.1f}".format, quantiles)]))
    return run_view(name, result, ["squared distances", *heads], rows, [line], wraps=True)


# ----------------------------------------------------------------------------------------------------------- coresets


def coreset_summary(name: str, result: CoresetResult) -> Group:
    """Return the terminal summary of a coreset: number of points, covered classes, and distance to all samples."""
    rows = [
        ("distance to all clients' samples", [bold(f"{result.metrics['distance']['ALL']:.4g}")]),
        ("classes among its nearest samples", [bold(f"{result.classes_covered} of {len(result.labels.names)}")]),
    ]
    what = "images" if len(result.shape) == 3 else "texts"
    line = (
        f"{result.points} points after {len(result.losses)} epochs along {DISTANCE_NAMES[result.distance]}; "
        f"{result.clients} clients with {result.datasets.train:,} training {what}; {result.seconds.total:,.0f} s"
    )
    return run_view(name, result, ("coreset", ""), rows, [line])
