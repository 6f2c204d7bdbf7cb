"""Measures between two measures on a Wasserstein geodesic (FedWaD eq. 5, 10), and their distance."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from knot_runner.transport.federated.measure import Measure, common_masses
from knot_runner.transport.federated.plan import optimal_plan, squared_distances

#: plan entries below this are rounding, where masses are not counts and sum to 1
_ROUNDING = 1e-14


def transport(first: Measure, second: Measure) -> tuple[np.ndarray, float, float]:
    """Optimal plan [n, m], the sum of its entries, and W_2 between the two measures.

    Between measures with counts the plan's entries are whole numbers.
    """
    a, b, unit = common_masses(first, second)
    plan, value = optimal_plan(squared_distances(first.points, second.points), a, b)
    return plan, unit, math.sqrt(value / unit)


def wasserstein(first: Measure, second: Measure) -> float:
    """W_2 between two measures: the root of the least mean squared Euclidean distance (eq. 2, p = 2)."""
    return transport(first, second)[2]


def interpolate(
    first: Measure, second: Measure, t: float, mode: Literal["exact", "approximate"]
) -> tuple[Measure, float]:
    """The measure at ``t`` (0: first, 1: second) of a geodesic from ``first`` to ``second``, and W_2 between them.

    exact (eq. 5): one point for each entry of the optimal plan: at most n + m - 1, and n for n = m points of equal
    masses. So on measures with counts a chain of interpolations between samples of one size n stays at n points;
    between samples of different sizes each step adds at most the second side's points less one, and no measure has more
    points than the common unit has parts. Nothing is pruned: the published code drops entries below 1e-5, which loses
    mass and makes the distance rise again as supports grow.

    approximate (eq. 10, barycentric projection): the points and masses of ``first``, each point moved towards the mean
    of where its mass goes. Equal to exact where n = m and all masses are equal (Theorem 1).
    """
    plan, unit, distance = transport(first, second)
    if mode == "approximate":
        means = (plan @ second.points) / plan.sum(1, keepdims=True)
        return Measure((1 - t) * first.points + t * means, first.weights), distance
    counted = first.counts is not None and second.counts is not None
    rows, columns = np.nonzero(plan > (0.0 if counted else _ROUNDING))
    points = (1 - t) * first.points[rows] + t * second.points[columns]
    return Measure(points, _lowest(plan[rows, columns]) if counted else plan[rows, columns]), distance


def _lowest(flows: np.ndarray) -> np.ndarray | None:
    """Whole numbers as counts in lowest terms; None where all are equal."""
    counts = flows.astype(np.int64)
    counts //= np.gcd.reduce(counts)
    return None if (counts == 1).all() else counts
