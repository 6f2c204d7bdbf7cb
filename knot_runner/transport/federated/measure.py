"""Discrete measures: points with masses, whole numbers of one unit where they can be (FedWaD 2.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from knot_runner.util.errors import UserError

#: whole numbers beyond this are not all doubles
MAX_UNITS = 2**53


@dataclass(frozen=True, eq=False)
class Measure:
    """Points [n, d] (float64) with masses: ``weights`` [n], above 0, in any unit; None = all equal.

    Weights of an integer type are *counts*: between measures with counts every transport plan is computed in whole
    numbers (:func:`common_masses`), so that no mass is lost to rounding however often measures are interpolated.

    Raises :class:`UserError` for points that are empty, not finite or not in rows, and for weights that do not fit.
    """

    points: np.ndarray
    weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points, dtype=np.float64)
        if points.ndim != 2 or 0 in points.shape:
            raise UserError(f"samples: shape {points.shape}; [n, d] with at least one point and one feature is right")
        bad = int((~np.isfinite(points).all(1)).sum())
        if bad:
            raise UserError(f"samples: {bad} of {len(points)} points have values that are not finite")
        object.__setattr__(self, "points", points)
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked(np.asarray(self.weights), len(points)))

    @property
    def size(self) -> int:
        """n, the number of points."""
        return len(self.points)

    @property
    def counts(self) -> np.ndarray | None:
        """The masses as whole numbers, int64 [n]; None where the weights are not of an integer type."""
        if self.weights is None:
            return np.ones(self.size, dtype=np.int64)
        return self.weights if self.weights.dtype == np.int64 else None

    def masses(self) -> np.ndarray:
        """The masses, float64 [n], of sum 1.

        >>> Measure(np.zeros((2, 1)), np.array([3, 1])).masses()
        array([0.75, 0.25])
        """
        if self.weights is None:
            return np.full(self.size, 1 / self.size)
        return self.weights / self.weights.sum()


def _checked(weights: np.ndarray, size: int) -> np.ndarray:
    """int64 or float64 [size]."""
    weights = weights.astype(np.int64 if np.issubdtype(weights.dtype, np.integer) else np.float64)
    if weights.shape != (size,):
        raise UserError(f"weights: shape {weights.shape} for {size} points; one number for each point is right")
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise UserError("weights: not all are finite and above 0")
    return weights


def common_masses(first: Measure, second: Measure) -> tuple[np.ndarray, np.ndarray, float]:
    """Masses of both in one unit, float64 [n] and [m], and their sum.

    Measures with counts: whole numbers, whose sum is the least common multiple of the two totals. Sums and differences
    of them are exact in doubles, hence every flow of the network simplex is; the published code has masses of 1/n
    instead, and drops plan entries below 1e-5. Any other measures: masses of sum 1.

    Raises :class:`UserError` where that multiple is beyond 2^53.
    """
    a, b = first.counts, second.counts
    if a is None or b is None:
        return first.masses(), second.masses(), 1.0
    totals = int(a.sum()), int(b.sum())
    unit = math.lcm(*totals)
    if unit > MAX_UNITS:
        raise UserError(f"samples: masses of {totals[0]} and {totals[1]} parts have no common unit within 2^53 parts")
    # multiplied in whole numbers: every product is at most ``unit``
    return (a * (unit // totals[0])).astype(float), (b * (unit // totals[1])).astype(float), float(unit)
