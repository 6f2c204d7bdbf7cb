"""Exact OTDD against a double loop over samples."""

from dataclasses import replace

import numpy as np
import ot
import pytest
from scipy.linalg import sqrtm

from knot_runner.transport.otdd import LabeledSamples, class_table
from knot_runner.util.errors import UserError
from tests.oracles.transport.otdd.pair import FORMS, augmented_points, exact_otdd


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


def samples(sizes, features, seed=0):
    draws = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)) * 3 + 1, sizes)
    points = draws.normal(size=(len(labels), features)) @ draws.normal(size=(features, features)) + labels[:, None]
    order = draws.permutation(len(labels))
    return LabeledSamples(points[order], labels[order])


def spread(data, label, covariance, part):
    sigma = np.cov(data.points[data.labels == label], rowvar=False)
    if covariance == "sigma_frobenius":
        return sigma.ravel() if part == "full" else np.diag(sigma)
    ridge = 1e-6 * np.eye(len(sigma))
    if part == "diagonal":
        return np.sqrt(np.diag(sigma + ridge))
    root = sqrtm(sigma + ridge).real
    return root.ravel() if part == "full" else np.diag(root)


@pytest.mark.parametrize("sizes", [(30, 40), (4, 3)], ids=["more samples than features", "fewer"])
@pytest.mark.parametrize(("covariance", "part"), FORMS)
def test_class_vectors(sizes, covariance, part):
    data = samples(sizes, 7)
    table = class_table(data, covariance, part)
    assert table.labels.tolist() == [1, 4]
    assert (table.labels[table.of] == data.labels).all()
    np.testing.assert_allclose(table.mass, np.array(sizes) / sum(sizes))
    for label, vector in zip(table.labels, table.vectors, strict=True):
        np.testing.assert_allclose(vector[:7], data.points[data.labels == label].mean(0))
        np.testing.assert_allclose(vector[7:], spread(data, label, covariance, part), rtol=1e-6, atol=1e-7)


def test_class_table_appends_spread_to_class_mean():
    """One sample of a class has no spread."""
    data = LabeledSamples(np.array([[1.0, 2.0], [5.0, 6.0], [7.0, 8.0]]), np.array([0, 1, 1]))
    vectors = class_table(data, "sigma_frobenius", "full").vectors
    np.testing.assert_array_equal(vectors, [[1, 2, 0, 0, 0, 0], [6, 7, 2, 2, 2, 2]])
    with pytest.raises(UserError, match="samples: 1 of 2"):
        LabeledSamples(np.array([[1.0], [np.nan]]), np.zeros(2, int))


@pytest.mark.parametrize("part", ["diagonal", "root_diagonal"])
def test_class_table_adds_ridge_before_the_root(part):
    """Of a feature without spread what is left is the ridge's root, .001; of one with variance 2e-6, that of 3e-6."""
    points = np.array([[1.0, 0.0], [1.0, 2e-3]])  # variances 0 and 2e-6
    table = class_table(LabeledSamples(points, np.zeros(2, int)), "sqrt_frobenius", part)
    np.testing.assert_allclose(table.vectors[0][2:], [1e-3, 3e-6**0.5], rtol=1e-9)
