"""Discrete measures, distances, and interpolation on a Wasserstein geodesic (FedWaD, eq. 5 and 10).

A measure consists of points with masses. If possible, the masses are integers in a common unit (FedWaD, section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy import ndarray

from knot_runner.transport.federated.plan import optimal_plan, squared_distances
from knot_runner.util.errors import UserError

#: Larger integers are not all exact in float64.
MAX_UNITS = 2**53


@dataclass(frozen=True, eq=False)
class Measure:
    """A discrete measure: ``points`` [n, d] in float64, with positive masses ``weights`` [n] in any unit.

    Weights of an integer type are *counts*. If ``weights`` is None, every count is 1. Repeated interpolation between
    measures with counts loses no mass to rounding.

    Raises:
        UserError: ``points`` is empty, not finite or not a matrix; or ``weights`` is not one positive number per point.
    """

    points: ndarray
    weights: ndarray | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points, dtype=np.float64)
        if points.ndim != 2 or 0 in points.shape:
            raise UserError(f"expected shape [n, d] with n, d >= 1, got {points.shape}", "samples")
        bad = (~np.isfinite(points).all(1)).sum()
        if bad:
            raise UserError(f"{bad} of {len(points)} points have values that are not finite", "samples")
        object.__setattr__(self, "points", points)
        if self.weights is None:
            return
        weights = np.asarray(self.weights)
        kind = np.float64
        if np.issubdtype(weights.dtype, np.integer):
            kind = np.int64
        weights = weights.astype(kind)
        if weights.shape != (self.size,):
            text = f"expected shape ({self.size},), one number per point, got {weights.shape}"
            raise UserError(text, "weights")
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise UserError("expected finite numbers above 0", "weights")
        object.__setattr__(self, "weights", weights)

    @property
    def size(self) -> int:
        """Return n, the number of points."""
        return len(self.points)

    @property
    def counts(self) -> ndarray | None:
        """Return the masses as integers, int64 [n]; None if the weights are of a floating-point type."""
        if self.weights is None:
            return np.ones(self.size, dtype=np.int64)
        if self.weights.dtype != np.int64:
            return None
        return self.weights

    def masses(self) -> ndarray:
        """Return the masses, float64 [n], with sum 1.

        >>> Measure(np.zeros((2, 1)), np.array([3, 1])).masses()
        array([0.75, 0.25])
        """
        if self.weights is None:
            return np.full(self.size, 1 / self.size)
        return self.weights / self.weights.sum()


def common_masses(first: Measure, second: Measure) -> tuple[ndarray, ndarray, float]:
    """Return the masses of two measures in a common unit, float64 [n] and [m], and the total mass.

    In the common unit, both measures have the same total mass. If both have counts, the masses are integers, and the
    total mass is the least common multiple of the two sums of counts. Sums and differences of these integers are exact
    in float64. If a measure has no counts, the total mass is 1.

    Raises:
        UserError: The least common multiple exceeds 2^53.
    """
    a = first.counts
    b = second.counts
    if a is None or b is None:
        return first.masses(), second.masses(), 1.0
    of_a = int(a.sum())
    of_b = int(b.sum())
    unit = math.lcm(of_a, of_b)
    if unit > MAX_UNITS:
        raise UserError(
            f"the least common multiple of the sizes {of_a} and {of_b} exceeds 2^53. Use other sizes", "samples"
        )
    # computed in integers, because every product is at most ``unit``
    return (a * (unit // of_a)).astype(float), (b * (unit // of_b)).astype(float), float(unit)


#: Plan entries below this value are rounding errors if masses sum to 1. Between counts, entries are integers.
_ROUNDING = 1e-14


def transport(first: Measure, second: Measure) -> tuple[ndarray, float, float]:
    """Return the optimal plan [n, m], the sum of the plan's entries, and W_2 between the two measures.

    If both measures have counts, the plan's entries are integers.
    """
    a, b, unit = common_masses(first, second)
    # The network simplex only adds and subtracts masses, so all flows between counts are exact.
    plan, value = optimal_plan(squared_distances(first.points, second.points), a, b)
    return plan, unit, math.sqrt(value / unit)


def wasserstein(first: Measure, second: Measure) -> float:
    """Return the Wasserstein distance W_2 of two measures, with Euclidean distances between points (eq. 2, p = 2)."""
    return transport(first, second)[2]


def interpolate(
    first: Measure, second: Measure, t: float, mode: Literal["exact", "approximate"]
) -> tuple[Measure, float]:
    """Return the measure at ``t`` (from 0 to 1) on a geodesic from ``first`` to ``second``, and W_2(first, second).

    Mode ``exact`` (eq. 5): the result has one point for each nonzero entry of the optimal plan. If ``first`` has n
    points and ``second`` has m points, the result has at most n + m - 1 points. If n = m and all masses are equal, the
    result has n points. The published code drops plan entries below 1e-5 and therefore loses mass.

    Mode ``approximate`` (eq. 10, barycentric projection): the result has the masses of ``first``. Each point of
    ``first`` moves towards the mean of those points of ``second`` that receive its mass. The result is the same as in
    mode ``exact`` if n = m and all masses are equal (Theorem 1).
    """
    plan, unit, distance = transport(first, second)
    if mode == "approximate":
        means = (plan @ second.points) / plan.sum(1, keepdims=True)
        return Measure((1 - t) * first.points + t * means, first.weights), distance
    rows, columns = np.nonzero(plan > _ROUNDING)
    points = (1 - t) * first.points[rows] + t * second.points[columns]
    weights = plan[rows, columns]
    if first.counts is not None and second.counts is not None:
        counts = weights.astype(np.int64)
        weights = counts // np.gcd.reduce(counts)
        if (weights == 1).all():
            weights = None
    return Measure(points, weights), distance
