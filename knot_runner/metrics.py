"""Table of all metrics: how each metric is computed, averaged and printed, and its range.

A plug-in adds a metric with ``METRICS["name"] = Metric(...)``. The name can then be used in tables, in claims and with
the command ``compare``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy import ndarray

from knot_runner.config.plugins import Table, checked, expect

Direction = Literal["higher", "lower"]
#: coordinates of C classes, shape [C, d]; None for classes without coordinates
Coordinates = Sequence[Sequence[float]] | ndarray | None
#: Metric -> value.
Measures = dict[str, float]


@dataclass(frozen=True)
class ClassSums:
    """Counts and sums for each class, on each of B test sets or bootstrap samples.

    Each field has shape [B, C] for C classes, or [B, 1] for sums over all classes. The operator ``+`` adds the fields.

    Attributes:
        hits: Number of correctly predicted examples of the class.
        predicted: Number of examples that are predicted to be of the class.
        truth: Number of examples of the class.
        values: Sum of the values from ``Metric.of_examples`` over the examples of the class; None if not needed.
    """

    hits: ndarray
    predicted: ndarray
    truth: ndarray
    values: ndarray | None = None

    def __add__(self, other: ClassSums) -> ClassSums:
        values = None
        if self.values is not None and other.values is not None:
            values = self.values + other.values
        return ClassSums(self.hits + other.hits, self.predicted + other.predicted, self.truth + other.truth, values)


@dataclass(frozen=True)
class TestSet:
    """One test set with N examples and C classes: the true class and the prediction of each example."""

    __test__ = False  # not a class of tests

    scores: ndarray  # [N, C]; the largest score in a row gives the predicted class
    probabilities: ndarray  # [N, C], float64
    labels: ndarray  # [N], true classes
    coordinates: Coordinates = None  # [C, d], of the classes
    logits: ndarray | None = None  # [N, C], if known
    temperature: float | None = None  # T at which the method evaluates, if known

    def __post_init__(self) -> None:
        for array in (self.scores, self.probabilities, self.labels):
            array.flags.writeable = False  # a metric that changes an array would change the other metrics

    @functools.cached_property
    def confusion(self) -> ndarray:
        """Return the confusion matrix, shape [C, C]. Rows are true classes, and columns are predicted classes."""
        classes = self.scores.shape[1]
        pairs = self.labels * classes + self.scores.argmax(1)
        return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def accuracies(sums: ClassSums) -> ndarray:
    """Return the fraction of correct predictions on each test set, shape [B]; 0 for a test set without examples."""
    return np.asarray(sums.hits.sum(1) / np.maximum(sums.truth.sum(1), 1))


def macro_f1(sums: ClassSums) -> ndarray:
    """Return the macro F1 on each test set, shape [B]: the unweighted mean of the F1 scores of the classes.

    As in scikit-learn, classes with neither examples nor predictions are left out of the mean.
    """
    either = sums.predicted + sums.truth
    shares = np.divide(2 * sums.hits, either, out=np.zeros_like(either), where=either > 0)
    return np.asarray(shares.sum(1) / np.maximum((either > 0).sum(1), 1))


def distances_from_truth(test: TestSet) -> ndarray | None:
    """Return the semantic distance of each example, shape [N]; None if the classes have no coordinates.

    The semantic distance (KNOT, section 1) is the L2 distance from the coordinates of the true class to the
    predicted point. This point is the mean of the coordinates of all classes, weighted by the predicted probabilities.
    """
    if test.coordinates is None:
        return None
    points = np.asarray(test.coordinates, dtype=np.float64)
    return np.asarray(np.linalg.norm(test.probabilities @ points - points[test.labels], axis=1))


def means_of_classes(sums: ClassSums) -> ndarray:
    """Return the macro average of the values from ``Metric.of_examples`` on each test set, shape [B].

    The values are averaged over the examples of each class, and then over the classes that have examples.
    """
    assert sums.values is not None
    present = sums.truth > 0
    of_classes = np.divide(sums.values, sums.truth, out=np.zeros_like(sums.values), where=present)
    return np.asarray(of_classes.sum(1) / present.sum(1))


def means_of_examples(sums: ClassSums) -> ndarray:
    """Return the mean of the values from ``Metric.of_examples`` over the examples of each test set, shape [B]."""
    assert sums.values is not None
    return np.asarray(sums.values.sum(1) / sums.truth.sum(1))


def cross_entropies(test: TestSet, temperature: float | None) -> ndarray | None:
    """Return the cross-entropy of each example in nats, shape [N]: ``-log softmax(logits / temperature)[true class]``.

    Return None if the logits or the temperature are unknown.
    """
    if test.logits is None or temperature is None:
        return None
    from scipy.special import log_softmax

    return np.asarray(-log_softmax(test.logits / temperature, axis=1)[np.arange(len(test.labels)), test.labels])


@dataclass(frozen=True)
class Metric:
    """A metric: how its value is computed, averaged and printed.

    There are three kinds of metrics:

    - With ``of_sums``, the metric is computed from sums over examples, and can be pooled over data sets.
    - With ``function``, the metric is computed from a whole test set.
    - With neither, the metric is computed during the run. An example is the accuracy over clients.
    """

    title: str  # in tables
    better: Direction | None  # None if unknown
    #: computes the metric; returns None if undefined on a :class:`TestSet`
    function: Callable[[TestSet], float | None] | None = None
    #: unit of printed differences and claims. The value in this unit is ``scale`` times the stored value
    unit: str = ""
    scale: float = 1.0
    digits: int = 3  # decimals of a stored value
    unit_digits: int = 3  # decimals of a value in ``unit``
    top: float = math.inf  # maximum of the stored value
    #: whether the value ``ALL`` is computed on the pooled examples of all data sets, or is the mean over data sets
    over: Literal["pooled", "mean"] = "pooled"
    short: str = ""  # title in narrow columns
    #: computes the values on B test sets or resamples, shape [B], from sums over examples
    of_sums: Callable[[ClassSums], ndarray] | None = None
    #: returns one value per example, [N]; ``of_sums`` reads their sums by class. None if undefined on a test set
    of_examples: Callable[[TestSet], ndarray | None] | None = None
    #: whether ``of_sums`` needs separate sums for each class; otherwise, claims sum over all classes, which is faster
    by_class: bool = True
    #: whether the metric needs logits. Finished runs store only probabilities, so such a metric cannot be recomputed
    of_logits: bool = False
    over_clients: str = ""  # name of the metric that holds the means over clients, if there is one
    preferred: bool = False  # whether comparisons of runs show the metric by default
    #: dotted keys of values that are shown with this value, because they are needed to interpret it (delta for epsilon)
    beside: tuple[str, ...] = ()

    @property
    def is_of_predictions(self) -> bool:
        """Return whether the metric is computed from predictions on a test set."""
        return self.function is not None or self.of_sums is not None

    def value(self, test: TestSet) -> float | None:
        """Return the value of the metric on ``test``; None if the metric is undefined on ``test``."""
        value = None
        if self.of_sums is None:
            value = self.function(test) if self.function else None
        elif (sums := class_sums(self, test)) is not None:
            value = self.of_sums(sums)[0]
        return None if value is None else float(value)


def of_logits(
    logits: ndarray, labels: ndarray, coordinates: Coordinates = None, temperature: float | None = None
) -> TestSet:
    """Return a test set with the given logits and labels, and with the probabilities ``softmax(logits)``.

    Args:
        logits: Logits of shape [N, C], float64.
        labels: True classes, shape [N].
        coordinates: Coordinates of the classes, shape [C, d], or None.
        temperature: The temperature for ``tempered_loss``, if known. The probabilities do not use it.
    """
    from scipy.special import softmax

    return TestSet(logits, softmax(logits, axis=1), labels, coordinates, logits, temperature)


def class_sums(metric: Metric, test: TestSet) -> ClassSums | None:
    """Return the sums for ``metric`` over the examples of ``test``; None if ``metric`` is undefined on ``test``.

    The fields of the result have shape [1, C].
    """
    table = test.confusion.astype(np.float64)
    sums = ClassSums(np.diag(table)[None], table.sum(0)[None], table.sum(1)[None])
    if metric.of_examples is None:
        return sums
    values = metric.of_examples(test)
    if values is None:
        return None
    return replace(sums, values=np.bincount(test.labels, values, len(table))[None])


def _of_clients(title: str, better: Direction = "higher") -> Metric:
    """Return a metric for a share, such as accuracy, that is averaged over clients."""
    return Metric(title, better, unit="points", scale=100.0, unit_digits=2, top=1.0)


def _accepted(where: str, metric: Metric) -> Metric:
    expect(where, metric, Metric)
    return replace(
        metric,
        function=metric.function and checked(where, metric.function, _problem),
        of_sums=metric.of_sums and checked(where, metric.of_sums, _values_problem),
        of_examples=metric.of_examples and checked(where, metric.of_examples, _values_problem),
    )


def _values_problem(values: object, given: TestSet | ClassSums) -> str:
    """Return an error text unless ``values`` has one number per example or, for sums, one number per test set."""
    if values is None and isinstance(given, TestSet):
        return ""
    wanted = given.labels if isinstance(given, TestSet) else given.truth[:, 0]
    if isinstance(values, ndarray) and values.shape == wanted.shape and np.isfinite(values).all():
        return ""
    return f"an invalid value (expected an array of length {len(wanted)} with finite numbers): {values!r:.40}"


def _problem(value: object, test: TestSet) -> str:
    if value is None or (isinstance(value, float | int | np.number) and math.isfinite(value)):
        return ""
    return f"{value!r:.40} instead of a finite number or None"


#: Log values of the program that are not metrics. Plug-ins must use other names for their metrics and log values.
LOG_VALUES = (
    "round", "seconds", "participants", "before", "after", "train_loss", "train_temperature", "steps", "bytes_down",
    "bytes_up", "client_flops", "server_flops", "test_temperature", "clients", "update_norms", "clipped",
    "logits_clipped", "clock", "dropped", "late", "partial", "staleness", "arrived", "distill_loss", "distill_steps",
    "distill_tested", "distill_before", "distill_after",
)  # fmt: skip
#: All metrics in display order. The keys are those below ``metrics`` in ``result.json``.
METRICS: Table[Metric] = Table("METRICS", {
    "f1": Metric("macro F1", "higher", unit="F1", top=1.0, of_sums=macro_f1, preferred=True),
    "accuracy": Metric("accuracy", "higher", unit="points", scale=100.0, unit_digits=2, top=1.0, of_sums=accuracies,
                       by_class=False, over_clients="client_accuracy", preferred=True),
    "sd": Metric("semantic distance", "lower", unit="SD", over="mean", short="SD", of_sums=means_of_classes,
                 of_examples=distances_from_truth, preferred=True),
    "loss": Metric("loss", "lower", unit="nats", of_sums=means_of_examples,
                   of_examples=lambda test: cross_entropies(test, 1.0), by_class=False, of_logits=True),
    "tempered_loss": Metric("loss of logits / T", "lower", unit="nats", of_sums=means_of_examples, by_class=False,
                            of_logits=True, of_examples=lambda test: cross_entropies(test, test.temperature)),
    "client_accuracy": _of_clients("accuracy over clients"),
    "epsilon": Metric("epsilon", "lower", beside=("privacy.neighbors", "privacy.delta")),  # of private training
    # of personalized models (pipelines/personalization/client_matrix.py): in (ID) and out of distribution (OOD)
    "id_accuracy": _of_clients("ID accuracy"),
    "ood_accuracy": _of_clients("OOD accuracy"),
    "ood_weighted": _of_clients("OOD accuracy by examples"),
    "all_accuracy": _of_clients("accuracy on all clients, unweighted"),
    "worst_decile": _of_clients("ID accuracy, worst decile"),
    "clients_hurt": _of_clients("share of clients hurt", "lower"),
    "unseen_accuracy": _of_clients("ID accuracy of unseen clients"),
    "id_loss": Metric("ID loss", "lower", unit="nats"),
    "ood_loss": Metric("OOD loss", "lower", unit="nats"),
    "distance": Metric("distance", "lower", preferred=True),  # federated Wasserstein distance
}, _accepted, reserved=LOG_VALUES)  # fmt: skip

#: The metric that determines the rounds to target, the best round and ``stop_at_target``.
ACCURACY = "accuracy"
#: The metric on validation examples that selects the best epoch, unless the method selects by the loss.
SCORE = "f1"
#: Descriptions of numbers in a result that are not metrics of predictions. A key here is one part of a dotted key.
NUMBERS: Table[Metric] = Table("NUMBERS", {
    "auc": Metric("AUC", None, top=1.0), "ari": Metric("ARI", "higher"), "seconds": Metric("seconds", "lower"),
    "rounds_to_target": Metric("rounds to target", "lower"), "time_to_target": Metric("time to target", "lower"),
    "costs": Metric("costs", "lower"),
}, papers="report")  # fmt: skip


def top_of(key: str) -> float | None:
    """Return the upper limit of a number in a result; None if the number has no upper limit.

    ``key``: the number's dotted key. If a number has an upper limit, its lower limit is 0.
    """
    metric = _metric_at(key) or NUMBERS.get(key.rpartition(".")[2])
    return metric.top if metric and math.isfinite(metric.top) else None


def beside(key: str) -> tuple[str, ...]:
    """Return the dotted keys of the values to show next to a number in a result.

    ``key``: the number's dotted key. For example, delta is shown next to epsilon.
    """
    metric = _metric_at(key)
    return metric.beside if metric else ()


def _metric_at(key: str) -> Metric | None:
    return next((METRICS[part] for part in key.split(".") if part in METRICS), None)


def computed_metrics() -> list[str]:
    """Return the names of the metrics that are computed from predictions and need no logits."""
    return [name for name, metric in METRICS.items() if metric.is_of_predictions and not metric.of_logits]


def accuracy_first() -> list[str]:
    """Return the names of all metrics: accuracy first, then the other metrics in display order."""
    return sorted(METRICS, key=lambda name: name != ACCURACY)


def measured(test: TestSet) -> Measures:
    """Return a dict from name to value for all metrics that are defined on ``test``."""
    measures = {}
    for name, metric in METRICS.items():
        value = metric.value(test)
        if value is not None:
            measures[name] = value
    return measures


def measured_score(logits: ndarray, labels: ndarray) -> float:
    """Return the macro F1 of the predictions in ``logits`` [N, C], given the true classes ``labels`` [N]."""
    return METRICS[SCORE].value(of_logits(logits, labels)) or 0.0


def reached_at(curve: Sequence[tuple[float, float]], target: float | None) -> float | None:
    """Return the first round or time at which the accuracy is at least ``target``.

    ``curve`` is a list of pairs (round or time, accuracy), ordered by round or time. The result is None if ``target``
    is None or is not reached.
    """
    for moment, value in curve:
        if target is not None and value >= target:
            return moment
    return None
