"""Steps of an iteration by inner products alone, against the same steps on the points themselves."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from knot_runner.transport.otdd import product_distances
from knot_runner.transport.otdd.plan_changes import sparse_plan


@pytest.mark.parametrize("times", [[0.9, 0.8, 0.3], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0]])
def test_the_sides_meet_as_points_do(times):
    """Points at random, so that a point's partner is hardly ever the one in its own place."""
    rng = np.random.default_rng(0)
    middle, to_first, to_second = points = rng.normal(size=(3, 8, 5))
    sets = [rng.normal(size=(6, 5)), rng.normal(size=(7, 5))]
    course = product_distances._Course(
        [np.stack([group @ own.T for group in points]) for own in sets],
        np.stack([[one @ other.T for other in points] for one in points]),
    )
    product_distances._meet(course, times)

    at_first, at_second, t = times
    first = (1 - at_first) * middle + at_first * to_first
    second = (1 - at_second) * middle + at_second * to_second
    partner = linear_sum_assignment(cdist(second, first, "sqeuclidean"))[1]
    assert (partner != np.arange(8)).sum() >= 4
    met = (1 - t) * second + t * first[partner]
    np.testing.assert_allclose(course.points[0, 0], met @ met.T, atol=1e-13)
    for found, own in zip(course.middle, sets, strict=True):
        np.testing.assert_allclose(found, met @ own.T, atol=1e-13)


def test_means_are_sent_as_points_are():
    """Two samples for each point on one side, one on the other, whose plans are drawn; then one side's plan changes."""
    rng = np.random.default_rng(1)
    middle = rng.normal(size=(8, 5))
    sets = [rng.normal(size=(16, 5)), rng.normal(size=(8, 5))]
    products = product_distances.SampleProducts(
        [own @ own.T for own in sets], [sets[0] @ sets[1].T, sets[1] @ sets[0].T], [middle @ own.T for own in sets]
    )
    course = product_distances._begun(products, middle @ middle.T)
    shares = [drawn(rng, 8, len(own)) for own in sets]
    everything, nothing = np.arange(8), np.arange(0)
    for changed in ([everything, everything], [np.array([2, 5]), nothing]):
        if len(changed[0]) < 8:
            shares[0][[2, 5]] = shares[0][[5, 2]]  # these two points' mass goes where the other's went
        plans = [sparse_plan(share, np.zeros(8)) for share in shares]
        product_distances._send(course, products, plans, changed)
        points = np.stack([middle, *(share @ own * 8 / len(own) for share, own in zip(shares, sets, strict=True))])
        np.testing.assert_allclose(course.points, np.einsum("aid,bjd->abij", points, points), atol=1e-13)
        for found, own in zip(course.samples, sets, strict=True):
            np.testing.assert_allclose(found, points @ own.T, atol=1e-13)


def drawn(rng, points, samples):
    """A plan [S, n] whose columns sum to 1 and rows to n / S: of each point as many samples, at random."""
    plan = np.zeros((points, samples))
    plan[rng.permutation(np.repeat(np.arange(points), samples // points)), np.arange(samples)] = 1
    return plan
