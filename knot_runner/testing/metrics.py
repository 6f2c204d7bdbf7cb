"""The contract of the entries of :data:`knot_runner.metrics.METRICS`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from knot_runner.metrics import METRICS, ClassSums, Metric, TestSet

#: Largest difference between two ways to compute one value, absolute and relative.
TOLERANCE = 1e-9


def check_metric(metric: str | Metric, examples: int = 60, classes: int = 4, seed: int = 0) -> None:
    """Check a metric on random predictions of ``examples`` examples and ``classes`` classes.

    What is checked:

    * The facts for tables: ``better`` is a direction, ``scale`` and ``top`` are above 0.
    * ``function`` returns a finite number from 0 to ``top`` and changes no array. Its value does not depend on the
      order of the examples. Certain and correct predictions score at least as well as random ones.
    * ``of_sums``, where there is one, is equal to ``function`` on every resample, also if all examples have one class
      and whatever other resamples are in the same batch. The metric is then one of sums, which can be added over any
      split of the examples into parts.

    A metric without ``function`` is computed during the run, and only its facts are checked.

    Args:
        metric: Name in ``METRICS``, or the entry itself.
        examples: Number of examples N; scores and probabilities are [N, C], labels [N].
        classes: Number of classes C; their coordinates are [C, 2].
        seed: Seed of the predictions.

    Raises:
        AssertionError: The metric breaks its contract.
        ValueError: ``function`` changes the arrays of its argument, which are read-only here.
    """
    metric = METRICS[metric] if isinstance(metric, str) else metric
    assert metric.better in ("higher", "lower") and min(metric.scale, metric.top) > 0, f"better, scale or top: {metric}"
    if metric.function is None:
        return
    draw = np.random.default_rng(seed)
    probabilities, labels = draw.dirichlet(np.ones(classes), examples), draw.integers(classes, size=examples)
    probabilities.flags.writeable = labels.flags.writeable = False
    test = TestSet(probabilities, probabilities, labels, draw.normal(size=(classes, 2)))
    value, shuffled = _value(metric, test), _value(metric, _rows(test, draw.permutation(examples)))
    assert _equal(shuffled, value), f"{metric.title} depends on the order of the examples: {value} and {shuffled}"
    certain = np.eye(classes)[labels]
    perfect = _value(metric, TestSet(certain, certain, labels, test.coordinates))
    best = max(perfect, value) if metric.better == "higher" else min(perfect, value)
    assert _equal(perfect, best), f"{metric.title} of correct predictions is {perfect}, worse than {value} at random"
    if metric.of_sums is None:
        return
    tests = [_rows(test, rows) for rows in (labels == labels[0], *draw.integers(examples, size=(8, examples)))]
    values, batch = [_value(metric, one) for one in tests], metric.of_sums(_sums(tests))
    alone = [float(metric.of_sums(_sums([one]))[0]) for one in tests]
    assert _equal(alone, values), f"{metric.title}: of_sums is {alone} on resamples, but function is {values}"
    assert _equal(batch, alone), f"{metric.title}: of_sums is {batch} on a batch of resamples, but {alone} one by one"


def _rows(test: TestSet, rows: np.ndarray) -> TestSet:
    return TestSet(test.scores[rows], test.probabilities[rows], test.labels[rows], test.coordinates)


def _sums(tests: Sequence[TestSet]) -> ClassSums:
    """Sums over the examples of each test set, by class."""
    found = []
    for test in tests:
        distance = np.linalg.norm(test.probabilities @ test.coordinates - test.coordinates[test.labels], axis=1)
        far = np.bincount(test.labels, distance, len(test.coordinates))
        found.append([np.diag(test.confusion), test.confusion.sum(0), test.confusion.sum(1), far])
    return ClassSums(*np.array(found, dtype=np.float64).swapaxes(0, 1))


def _value(metric: Metric, test: TestSet) -> float:
    value = metric.function(test)
    is_in_range = value is not None and np.isfinite(value) and -TOLERANCE <= value <= metric.top + TOLERANCE
    assert is_in_range, f"{metric.title} is {value}, not a finite number from 0 to {metric.top}"
    return float(value)


def _equal(found: ArrayLike, expected: ArrayLike) -> bool:
    return np.shape(found) == np.shape(expected) and np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
