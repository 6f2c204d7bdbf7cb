"""The distance of two sets of labeled samples, step by step: the reference for the fast matrix."""

import numpy as np

from knot_runner.transport.federated.measure import Measure, interpolate, wasserstein
from knot_runner.transport.otdd.matrix import least_cost
from knot_runner.transport.otdd.statistics import class_table

#: What can stand for a class in a federated distance: (covariance, part)
FORMS = [
    *(("sigma_frobenius", part) for part in ("full", "diagonal")),
    *(("sqrt_frobenius", part) for part in ("full", "diagonal", "root_diagonal")),
]


def pair_distance(a, b, options, start, times):
    """FedWaD (Algorithm 1, eq. 10) between the augmented points of a and b, squared, as OTDD reports it (public code):
    ``(W(a, xi) + W(xi, b))^2`` after K iterations, from ``start`` [S, d + L] with ``times`` [K, 3]."""
    first, second = (Measure(augmented_points(data, classes(data, options))) for data in (a, b))
    middle = Measure(start)
    for to_first, to_second, at_server in times:
        near_first, _ = interpolate(middle, first, to_first, "approximate")
        near_second, _ = interpolate(middle, second, to_second, "approximate")
        middle, _ = interpolate(near_second, near_first, at_server, "approximate")
    return (wasserstein(first, middle) + wasserstein(middle, second)) ** 2


def exact_otdd(a, b, options):
    return least_cost(a.points, b.points, classes(a, options), classes(b, options))


def classes(samples, options):
    return class_table(samples, options.covariance, options.part)


def augmented_points(samples, table):
    """Points [n, d + L] in float64: features, then mean and covariance of the class."""
    return np.concatenate([samples.points.astype(np.float64), table.vectors[table.of]], 1)
