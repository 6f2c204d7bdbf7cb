"""A check of the entries of :data:`knot_runner.metrics.METRICS`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from knot_runner.metrics import METRICS, ClassSums, Metric, TestSet, class_sums, of_logits

#: Largest absolute and relative difference between two computations of one value.
TOLERANCE = 1e-9


def check_metric(metric: str | Metric, examples: int = 60, classes: int = 4, seed: int = 0) -> None:
    """Check a metric on random predictions of ``examples`` examples and ``classes`` classes.

    These rules are checked:

    * The attributes for tables are valid: ``better`` is ``higher`` or ``lower``, and ``scale`` and ``top`` are
      positive.
    * The value is a finite number from 0 to ``top``, and the metric changes no array. The value does not depend on the
      order of the examples. Certain and correct predictions score at least as well as random ones.
    * ``of_sums``, if set, returns for a batch of resamples the same values as for each resample alone, also for a
      resample with examples of a single class. Adding the sums over two parts of a test set gives the value on the
      whole test set.

    For a metric that does not read predictions, only the attributes for tables are checked.

    Args:
        metric: Name in ``METRICS``, or the entry itself.
        examples: Number N of random examples, which have logits of shape [N, C] and labels of shape [N].
        classes: Number C of classes. The check draws random coordinates of shape [C, 2] for metrics that use the
            distance between classes.
        seed: Seed of the predictions.

    Raises:
        AssertionError: The metric breaks one of these rules.
        ValueError: The metric changes its arguments, whose arrays are read-only.
    """
    metric = METRICS[metric] if isinstance(metric, str) else metric
    assert metric.better in ("higher", "lower") and min(metric.scale, metric.top) > 0, f"invalid metric: {metric}"
    if not metric.is_of_predictions:
        return
    draw = np.random.default_rng(seed)
    logits, labels = draw.normal(size=(examples, classes)), draw.integers(classes, size=examples)
    test = of_logits(logits, labels, draw.normal(size=(classes, 2)), temperature=2.0)
    for array in (logits, test.probabilities, labels, test.coordinates):
        array.flags.writeable = False
    value, shuffled = _value(metric, test), _value(metric, _rows(test, draw.permutation(examples)))
    assert _equal(shuffled, value), f"{metric.title} depends on the order of the examples: {value} and {shuffled}"
    perfect = _value(metric, of_logits(1e3 * np.eye(classes)[labels], labels, test.coordinates, temperature=2.0))
    best = max(perfect, value) if metric.better == "higher" else min(perfect, value)
    assert _equal(perfect, best), f"{metric.title} of correct predictions is {perfect}, worse than {value} at random"
    if metric.of_sums is None:
        return
    tests = [_rows(test, rows) for rows in (labels == labels[0], *draw.integers(examples, size=(8, examples)))]
    sums = [class_sums(metric, test_set) for test_set in tests]
    batch = metric.of_sums(ClassSums(*map(_joined, zip(*map(dataclasses.astuple, sums), strict=True))))
    alone = [_value(metric, test_set) for test_set in tests]
    assert _equal(batch, alone), f"{metric.title}: of_sums is {batch} on a batch of resamples, but {alone} one by one"
    halves = [class_sums(metric, _rows(test, rows)) for rows in (slice(0, 20), slice(20, None))]
    added = metric.of_sums(halves[0] + halves[1])
    assert _equal(added, [value]), f"{metric.title}: {added} from the sums of two parts, but {value} of the whole"


def _rows(test: TestSet, rows: np.ndarray | slice) -> TestSet:
    return of_logits(test.logits[rows], test.labels[rows], test.coordinates, test.temperature)


def _joined(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    return None if parts[0] is None else np.concatenate(parts)


def _value(metric: Metric, test: TestSet) -> float:
    value = metric.value(test)
    is_in_range = value is not None and np.isfinite(value) and -TOLERANCE <= value <= metric.top + TOLERANCE
    assert is_in_range, f"{metric.title} is {value}, not a finite number from 0 to {metric.top}"
    return float(value)


def _equal(values: ArrayLike, expected: ArrayLike) -> bool:
    return np.shape(values) == np.shape(expected) and np.allclose(values, expected, rtol=TOLERANCE, atol=TOLERANCE)
