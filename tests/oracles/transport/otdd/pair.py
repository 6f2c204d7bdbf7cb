"""The distance of two sets of labeled samples, step by step: the reference for the fast matrix."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings.methods.transport import OtddSettings
from knot_runner.transport.federated.measure import Measure, interpolate, wasserstein
from knot_runner.transport.otdd.matrix import least_cost
from knot_runner.transport.otdd.statistics import ClassTable, LabeledSamples, class_table


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


def augmented_points(samples: LabeledSamples, table: ClassTable) -> np.ndarray:
    """Points [n, d + L] in float64: features, then mean and covariance of the class."""
    return np.concatenate([samples.points.astype(np.float64), table.vectors[table.of]], 1)
