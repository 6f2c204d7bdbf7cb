"""Terminal summaries of runs on distances: a federated Wasserstein distance, distances between data sets, and coresets
with their accuracy."""

from __future__ import annotations

import numpy as np
from rich.console import Group

from knot_runner.metrics import METRICS, accuracy_first
from knot_runner.papers.fedwad.results import CoresetResult, DistanceResult, KnnResult, MatrixResult
from knot_runner.report.records.run_summary import SummaryRow, bold, run_view
from knot_runner.report.render.text import number

#: Above this number of data sets, the range of distances is shown instead of a grid.
_MAX_SHOWN = 6
MATRIX_SOLVERS = {"federated": "FedWaD, approximate", "exact": "exact optimal transport, centralized"}
DISTANCE_NAMES = {"federated": "the federated distance", "exact": "the exact distance, not federated"}


def distance_summary(name: str, result: DistanceResult) -> Group:
    """The federated distance beside the exact one and the closed form, with the gap to the exact one."""
    seconds = result.seconds
    exact = result.exact
    rows: list[SummaryRow] = []
    for title, value, spent in (
        (f"federated, after {result.iterations} iterations", result.value, seconds.federated),
        ("exact, all samples at one place", exact, seconds.exact),
        ("closed form of the distributions", result.closed_form, None),
    ):
        gap = f"{100 * (value / exact - 1):+.3g}%" if exact and value != exact else ""
        rows.append((title, [bold(f"{value:.5g}"), gap, "" if spent is None else f"{spent:.3g} s"]))
    first, second = result.samples
    lines = [
        f"{first} and {second} samples in {result.dimension} dimensions; {result.mode} measures of "
        f"{result.support[-1]} points"
    ]
    if privacy := result.spent:
        lines.append(f"each client has spent epsilon {privacy.epsilon:g}, delta {privacy.delta:g} in all")
    return run_view(name, result, ("2-Wasserstein distance", "value", "off the exact one", "time"), rows, lines)


# -------------------------------------------------------------------------------------------------- between data sets


def matrix_summary(name: str, result: MatrixResult) -> Group:
    """All distances of a few data sets; else their range, also within and between planted groups."""
    matrix = np.array(result.matrix)
    pairs = len(matrix) * (len(matrix) - 1) // 2
    sizes = result.sizes
    samples = str(min(sizes)) if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    line = (
        f"{MATRIX_SOLVERS[result.solver]}; {pairs} pairs of {len(matrix)} data sets, {samples} samples each; "
        f"{result.seconds.distances:.3g} s"
    )
    heads = ["pairs", "smallest", "median", "largest"]
    rows = []
    if len(matrix) <= _MAX_SHOWN:
        heads = result.names
        for i, first in enumerate(heads):
            rows.append((first, ["-" if i == j else f"{matrix[i, j]:,.1f}" for j in range(len(matrix))]))
    else:
        for title, values in kinds_of_pairs(matrix, result.groups).items():
            found = (values.min(), np.median(values), values.max())
            rows.append((title, [str(len(values)), *(f"{value:,.1f}" for value in found)]))
    return run_view(name, result, ["squared distances", *heads], rows, [line], wraps=True)


def kinds_of_pairs(matrix: np.ndarray, groups: list[int] | None) -> dict[str, np.ndarray]:
    """Distances [M] of all pairs, and, where there are planted ``groups``, of those within one and between two.

    ``matrix`` [N, N]. A kind without a pair is left out.
    """
    rows, columns = np.triu_indices(len(matrix), 1)
    found = {"all pairs": matrix[rows, columns]}
    if groups is not None:
        same_group = np.array(groups)[rows] == np.array(groups)[columns]
        found["in one planted group"] = found["all pairs"][same_group]
        found["of two groups"] = found["all pairs"][~same_group]
    return {title: values for title, values in found.items() if len(values)}


# ----------------------------------------------------------------------------------------------------------- coresets


def coreset_summary(name: str, result: CoresetResult) -> Group:
    """Summary of a coreset: remaining distance and covered classes."""
    rows = {
        "distance to all clients' samples": f"{result.metrics['distance']['ALL']:.4g}",
        "classes among its nearest samples": f"{result.classes_covered} of {len(result.labels.names)}",
    }
    line = f"{result.points} points after {len(result.losses)} epochs"
    return _of_coresets(name, "coreset", rows, line, result)


def knn_summary(name: str, result: KnnResult) -> Group:
    """Summary of the nearest-neighbor accuracy of the clients' coresets on all test images."""
    metrics = result.metrics
    shown = [metric for metric in accuracy_first() if "ALL" in metrics.get(metric, {})]
    rows = {METRICS[metric].title: number(metrics[metric]["ALL"], 3) for metric in shown}
    rows["accuracy over clients, unweighted"] = number(metrics["client_accuracy"]["unweighted"], 3)
    return _of_coresets(name, "nearest neighbor among all coresets", rows, f"{result.points} points a client", result)


def _of_coresets(name: str, head: str, rows: dict[str, str], made: str, result: CoresetResult | KnnResult) -> Group:
    what = "images" if len(result.shape) == 3 else "texts"
    line = (
        f"{made} along {DISTANCE_NAMES[result.distance]}; {result.clients} clients with {result.datasets.train:,} "
        f"training {what}; {result.seconds.total:,.0f} s"
    )
    return run_view(name, result, (head, ""), [(title, [bold(value)]) for title, value in rows.items()], [line])
