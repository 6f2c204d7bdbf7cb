"""The distance of two sets of labeled samples, step by step: federated, the reference for the fast matrix, and exact.

:func:`exact_otdd` is OTDD solved at once over all samples of both sides: centralized, the baseline. The cost of moving
(x, y) to (x', y') is ``||x - x'||^2 + ||m_y - m_y'||^2 + spread(y, y')`` (FedWaD eq. 13, where d(x, x') must be read as
squared), without the factor 1/2 that microsoft/otdd has in both. ``spread`` is the squared Frobenius distance of the
representations of the covariances.
"""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings.methods.transport import OtddSettings
from knot_runner.transport.federated.measure import Measure, interpolate, wasserstein
from knot_runner.transport.federated.plan import optimal_plan, squared_distances
from knot_runner.transport.otdd.statistics import ClassTable, LabeledSamples, augmented_points, class_table


def pair_distance(
    a: LabeledSamples, b: LabeledSamples, options: OtddSettings, start: np.ndarray, times: np.ndarray
) -> float:
    """FedWaD (Algorithm 1) between the augmented points of a and b, squared, as OTDD reports it (public code).

    ``start`` [S, d + L] and ``times`` [K, 3] come from first_iteration.py. One iteration moves the interpolating
    measure xi towards each client's samples, then one result towards the other, always on the support of the first
    argument (eq. 10). The value is ``(W(a, xi) + W(xi, b))^2`` after K iterations.
    """
    first, second = (
        Measure(augmented_points(samples, class_table(samples, options.covariance, options.part))) for samples in (a, b)
    )
    middle = Measure(start)
    for to_first, to_second, at_server in times:
        near_first, _ = interpolate(middle, first, to_first, "approximate")
        near_second, _ = interpolate(middle, second, to_second, "approximate")
        middle, _ = interpolate(near_second, near_first, at_server, "approximate")
    return (wasserstein(first, middle) + wasserstein(middle, second)) ** 2


def exact_otdd(a: LabeledSamples, b: LabeledSamples, options: OtddSettings) -> float:
    """The least mean cost over all plans between the samples of a and b: a squared distance."""
    tables = [class_table(samples, options.covariance, options.part) for samples in (a, b)]
    return least_cost(a.points, b.points, *tables)


def least_cost(x: np.ndarray, y: np.ndarray, first: ClassTable, second: ClassTable) -> float:
    """:func:`exact_otdd` of points [n, d] and [m, d] with their class tables."""
    between = squared_distances(first.vectors, second.vectors)
    cost = squared_distances(x, y) + between[first.of[:, None], second.of]
    return optimal_plan(cost)[1]
