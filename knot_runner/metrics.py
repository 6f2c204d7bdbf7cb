"""The table of metrics of predictions: name, computation, format, range and averaging of each.

All code that evaluates, sorts, prints, judges claims or plots reads :data:`METRICS`. A plug-in adds a metric by
``METRICS["name"] = Metric(...)``; it is then in every result, and tables, claims and ``compare`` accept its name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from knot_runner.config.plugins import Table, checked, expect


@dataclass(frozen=True)
class Metric:
    """One metric."""

    #: title in tables
    title: str
    better: Literal["higher", "lower"]
    #: computes it from a :class:`TestSet`; returns None if undefined there (labels without coordinates). A metric
    #: without a function is computed during the run, where its input is: losses need logits, accuracy over clients
    #: needs the clients
    function: Callable[[TestSet], float | None] | None = None
    #: unit in which differences and claims are printed: ``scale`` times the stored value
    unit: str = ""
    scale: float = 1.0
    #: decimals of a stored value, and of one in its unit
    digits: int = 3
    unit_digits: int = 3
    #: maximum of the stored value
    top: float = math.inf
    #: how ALL is computed: on all examples pooled, or as the mean over data sets
    over: Literal["pooled", "mean"] = "pooled"
    #: title in narrow columns
    short: str = ""
    #: the values [B] of ``function`` on B resamples of one data set, from their sums; None: claims call ``function``
    #: on every resample, which is slower
    of_sums: Callable[[ClassSums], np.ndarray] | None = None


@dataclass(frozen=True)
class ClassSums:
    """Sums over the examples of each of B resamples, by class: ``hits``, ``predicted``, ``truth`` [B, C], and
    distances ``far`` [B, C] from the class's coordinates, None without coordinates."""

    hits: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    far: np.ndarray | None = None


@dataclass(frozen=True)
class TestSet:
    """Predictions on one test set. ``scores`` [N, C]: the largest of a row is the predicted class; ``probabilities``
    [N, C], float64; ``labels`` [N]; ``coordinates`` [C, d] of the labels, or None."""

    __test__ = False  # not a class of tests

    scores: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray
    coordinates: np.ndarray | None

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """See :func:`confusion`."""
        return confusion(self.scores.argmax(1), self.labels, self.scores.shape[1])


def confusion(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Counts [C, C], true class by predicted class."""
    return np.bincount(labels * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def accuracy(table: np.ndarray) -> float:
    """Share on the diagonal of a confusion table; 0 for an empty one."""
    return float(np.trace(table) / max(table.sum(), 1))


def macro_f1(table: np.ndarray) -> float:
    """Unweighted mean of F1 over the classes that occur as truth or prediction (as scikit-learn's ``macro``)."""
    hits = np.diag(table).astype(float)
    either = table.sum(0) + table.sum(1)
    present = either > 0
    return float(np.mean(2 * hits[present] / either[present])) if present.any() else 0.0


def semantic_distance(probabilities: np.ndarray, labels: np.ndarray, coordinates: np.ndarray) -> float:
    """Label-wise mean of || E[p] - coordinate of the truth ||_2, over the classes present (KNOT section 1).

    ``probabilities`` [N, C], ``labels`` [N], ``coordinates`` [C, d]; in units of the coordinates, 0 is best.
    """
    distance = np.linalg.norm(probabilities @ coordinates - coordinates[labels], axis=1)
    return float(np.mean([distance[labels == label].mean() for label in np.unique(labels)]))


def _semantic_distance(test: TestSet) -> float | None:
    if test.coordinates is None:
        return None
    return semantic_distance(test.probabilities, test.labels, test.coordinates)


def _accuracy_of_sums(sums: ClassSums) -> np.ndarray:
    return sums.hits.sum(1) / sums.truth.sum(1)


def _f1_of_sums(sums: ClassSums) -> np.ndarray:
    either = sums.predicted + sums.truth
    shares = np.divide(2 * sums.hits, either, out=np.zeros_like(either), where=either > 0)
    return shares.sum(1) / (either > 0).sum(1)


def _sd_of_sums(sums: ClassSums) -> np.ndarray:
    assert sums.far is not None
    present = sums.truth > 0
    means = np.divide(sums.far, sums.truth, out=np.zeros_like(sums.far), where=present)
    return means.sum(1) / present.sum(1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities [N, C] of ``logits`` [N, C]."""
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def mean_cross_entropy(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """Mean of -log softmax(z / T)[truth], in nats (FLex&Chill divides by T when it evaluates, too)."""
    cooled = logits / temperature
    top = cooled.max(1)
    total = np.log(np.exp(cooled - top[:, None]).sum(1)) + top
    return float(np.mean(total - cooled[np.arange(len(labels)), labels]))


def _of_clients(title: str, better: Literal["higher", "lower"] = "higher") -> Metric:
    """The metric of a share that is averaged over clients."""
    return Metric(title, better, unit="points", scale=100.0, unit_digits=2, top=1.0)


def _accepted(where: str, metric: Metric) -> Metric:
    expect(where, metric, Metric)
    return metric if metric.function is None else replace(metric, function=checked(where, metric.function, _problem))


def _problem(value: object, test: TestSet) -> str:
    if value is None or (isinstance(value, float | int | np.number) and math.isfinite(value)):
        return ""
    return f"{value!r:.40} instead of a finite number or None"


#: Key in ``metrics`` of ``result.json`` -> metric, in display order.
METRICS: Table[Metric] = Table("METRICS", {
    "f1": Metric("macro F1", "higher", lambda test: macro_f1(test.confusion), "F1", top=1.0, of_sums=_f1_of_sums),
    "accuracy": Metric(
        "accuracy", "higher", lambda test: accuracy(test.confusion), "points", 100.0, unit_digits=2, top=1.0,
        of_sums=_accuracy_of_sums,
    ),
    "sd": Metric(
        "semantic distance", "lower", _semantic_distance, "SD", over="mean", short="SD", of_sums=_sd_of_sums
    ),
    "loss": Metric("loss", "lower", unit="nats"),
    "tempered_loss": Metric("loss of logits / T", "lower", unit="nats"),
    "client_accuracy": Metric("accuracy over clients", "higher", unit="points", scale=100.0, unit_digits=2, top=1.0),
    "distance": Metric("distance", "lower"),
    "epsilon": Metric("epsilon", "lower"),  # of private training, at user level
    # of clients' own models (pipelines/personalisation/client_matrix.py): in distribution (ID) and out of it (OOD)
    "id_accuracy": _of_clients("ID accuracy"),
    "ood_accuracy": _of_clients("OOD accuracy"),
    "ood_weighted": _of_clients("OOD accuracy by examples"),
    "all_accuracy": _of_clients("accuracy on all clients alike"),
    "worst_decile": _of_clients("ID accuracy, worst decile"),
    "clients_hurt": _of_clients("share of clients hurt", "lower"),
    "unseen_accuracy": _of_clients("ID accuracy of unseen clients"),
    "id_loss": Metric("ID loss", "lower", unit="nats"),
    "ood_loss": Metric("OOD loss", "lower", unit="nats"),
}, _accepted)  # fmt: skip


#: Maximum of other numbers of a result, by the last part of their key; the minimum is 0.
OTHER_TOPS = {"auc": 1.0}


def top_of(key: str) -> float | None:
    """Maximum of the number at a dotted ``key`` of a result, whose minimum is 0; None if unbounded:
    ``metrics.accuracy.ALL`` and ``personalisation.transfer.auc`` are at most 1."""
    parts = key.split(".")
    tops = [METRICS[part].top for part in parts if part in METRICS and math.isfinite(METRICS[part].top)]
    return tops[0] if tops else OTHER_TOPS.get(parts[-1])


def computed_metrics() -> list[str]:
    """Names of the metrics that are computed from predictions on a test set."""
    return [name for name, metric in METRICS.items() if metric.function]


def measured(test: TestSet) -> dict[str, float]:
    """Name -> value of every metric that is defined on ``test``."""
    values = {name: metric.function(test) for name, metric in METRICS.items() if metric.function}
    return {name: float(value) for name, value in values.items() if value is not None}


def rounds_to_target(accuracies: list[tuple[int, float]], target: float | None) -> int | None:
    """Rounds trained until the first (round, accuracy) with accuracy >= ``target``; None if never."""
    reached = [round for round, value in accuracies if target is not None and value >= target]
    return min(reached, default=None)


def time_to_target(accuracies: list[tuple[float, float]], target: float | None) -> float | None:
    """Time of the first (time, accuracy) with accuracy >= ``target``; None if never."""
    return next((moment for moment, value in accuracies if target is not None and target <= value), None)


def measure_data_set(probabilities: np.ndarray, labels: np.ndarray, coordinates: np.ndarray) -> dict[str, float]:
    """Every metric of one data set, from ``probabilities`` [N, C], ``labels`` [N], ``coordinates`` [C, d]."""
    return measured(TestSet(probabilities, probabilities.astype(np.float64), labels, coordinates))


def measure_all(
    predictions: dict[str, tuple[np.ndarray, np.ndarray]], coordinates: np.ndarray
) -> dict[str, dict[str, float]]:
    """Metric -> data set or ``ALL`` -> value.

    ALL is the pooled value for F1 and accuracy and the unweighted mean over data sets for SD, as deduced from the
    published tables (knot.md 1.7: the SD mean fits 24 of 24 rows, the pooled accuracy 8 of 8).
    """
    each = {name: measure_data_set(*prediction, coordinates) for name, prediction in predictions.items()}
    pooled = measure_data_set(
        np.concatenate([p for p, _ in predictions.values()]),
        np.concatenate([y for _, y in predictions.values()]),
        coordinates,
    )
    table = {}
    for metric in pooled:
        values = {name: own[metric] for name, own in each.items() if metric in own}
        mean = METRICS[metric].over == "mean"
        table[metric] = {**values, "ALL": float(np.mean(list(values.values()))) if mean else pooled[metric]}
    return table
