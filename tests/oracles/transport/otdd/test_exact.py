"""Exact OTDD against a double loop over samples."""

from dataclasses import replace

import numpy as np
import ot
import pytest

from knot_runner.transport.otdd import LabeledSamples, class_table
from tests.oracles.transport.otdd.pair import augmented_points, exact_otdd


def by_the_book(a, b, between):
    """The least mean cost over samples, with ``between(label, label')`` for classes."""
    of_classes = np.array([[between(p, q) for q in b.labels] for p in a.labels])
    return ot.emd2([], [], ot.dist(a.points, b.points) + of_classes, numItermax=10**6)


def statistics(data, label):
    own = data.points[data.labels == label]
    return own.mean(0), np.cov(own, rowvar=False)


def test_covariances_of_eq_14(sets, options):
    a, b = sets(2, features=4)

    def between(p, q):
        (m, s), (n, r) = statistics(a, p), statistics(b, q)
        return np.sum((m - n) ** 2) + np.sum((s - r) ** 2)

    options = replace(options, solver="exact", covariance="sigma_frobenius", part="full")
    assert exact_otdd(a, b, options) == pytest.approx(by_the_book(a, b, between), rel=1e-10)


@pytest.mark.parametrize("part", ["full", "diagonal", "root_diagonal"])
def test_exact_otdd_equals_distance_of_augmented_points(sets, options, part):
    a, b = sets(2)
    options = replace(options, solver="exact", part=part)
    x, y = (augmented_points(data, class_table(data, "sqrt_frobenius", part)) for data in (a, b))
    assert exact_otdd(a, b, options) == pytest.approx(ot.emd2([], [], ot.dist(x, y)), rel=1e-10)


def test_exact_otdd_of_equal_sets_is_zero(sets, options):
    (a,) = sets(1)
    turned = LabeledSamples(a.points[::-1].copy(), a.labels[::-1].copy())
    assert exact_otdd(a, turned, replace(options, solver="exact")) == pytest.approx(0, abs=1e-9)


def test_features_all_equal(options):
    """Without any spread, what is left is the distance of the means, of features and of labels."""
    a, b = (LabeledSamples(np.full((6, 3), value), np.arange(6) % 2) for value in (1.0, 3.0))
    for covariance, part in (("sigma_frobenius", "full"), ("sqrt_frobenius", "root_diagonal")):
        settings = replace(options, solver="exact", covariance=covariance, part=part)
        assert exact_otdd(a, b, settings) == pytest.approx(2 * 3 * 4.0)
