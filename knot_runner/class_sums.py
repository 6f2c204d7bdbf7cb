"""Predictions on test sets, their sums over examples by class, and the values of metrics that such sums have."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: [C, d], of classes; None where they have none
Coordinates = Sequence[Sequence[float]] | np.ndarray | None


@dataclass(frozen=True)
class ClassSums:
    """Sums over the examples of each of B test sets or resamples, by class.

    ``hits``, ``predicted`` and ``truth`` are [B, C]; ``values`` [B, C] are sums of the metric's ``of_examples`` by true
    class. Sums of parts are added by ``+``.
    """

    hits: np.ndarray
    predicted: np.ndarray
    truth: np.ndarray
    values: np.ndarray | None = None

    def __add__(self, other: ClassSums) -> ClassSums:
        values = None if self.values is None or other.values is None else self.values + other.values
        return ClassSums(self.hits + other.hits, self.predicted + other.predicted, self.truth + other.truth, values)


@dataclass(frozen=True)
class TestSet:
    """Predictions on one test set.

    ``scores`` [N, C]: the largest of a row is the predicted class; ``probabilities`` [N, C], float64; ``labels`` [N];
    ``coordinates`` [C, d] of the labels, or None; ``logits`` [N, C] if known, and the ``temperature`` T that the method
    evaluates at.
    """

    __test__ = False  # not a class of tests

    scores: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray
    coordinates: Coordinates = None
    logits: np.ndarray | None = None
    temperature: float | None = None

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """Counts [C, C], true class by predicted class."""
        classes = self.scores.shape[1]
        pairs = self.labels * classes + self.scores.argmax(1)
        return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def accuracies(sums: ClassSums) -> np.ndarray:
    """Return the share of correct predictions; 0 without examples."""
    return np.asarray(sums.hits.sum(1) / np.maximum(sums.truth.sum(1), 1))


def macro_f1(sums: ClassSums) -> np.ndarray:
    """Return the unweighted mean of F1 over the classes in truth or predictions (scikit-learn's ``macro``)."""
    either = sums.predicted + sums.truth
    shares = np.divide(2 * sums.hits, either, out=np.zeros_like(either), where=either > 0)
    return np.asarray(shares.sum(1) / np.maximum((either > 0).sum(1), 1))


def distances_from_truth(test: TestSet) -> np.ndarray | None:
    """Return || E[p] - coordinate of the truth ||_2 of each example, in units of the coordinates (KNOT section 1)."""
    if test.coordinates is None:
        return None
    points = np.asarray(test.coordinates, dtype=np.float64)
    return np.asarray(np.linalg.norm(test.probabilities @ points - points[test.labels], axis=1))


def means_of_classes(sums: ClassSums) -> np.ndarray:
    """Return mean over the classes present of the mean value of a class's examples."""
    assert sums.values is not None
    present = sums.truth > 0
    of_classes = np.divide(sums.values, sums.truth, out=np.zeros_like(sums.values), where=present)
    return np.asarray(of_classes.sum(1) / present.sum(1))


def means_of_examples(sums: ClassSums) -> np.ndarray:
    """Return mean value of an example."""
    assert sums.values is not None
    return np.asarray(sums.values.sum(1) / sums.truth.sum(1))


def cross_entropies(test: TestSet, temperature: float | None) -> np.ndarray | None:
    """Return -log softmax(z / T)[truth] of each example, in nats (FLex&Chill also divides by T in evaluations)."""
    if test.logits is None or temperature is None:
        return None
    from scipy.special import log_softmax

    return np.asarray(-log_softmax(test.logits / temperature, axis=1)[np.arange(len(test.labels)), test.labels])
