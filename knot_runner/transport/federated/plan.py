"""Optimal transport plans by the network simplex, run to its end, and squared Euclidean costs."""

from __future__ import annotations

import math
import warnings

import numpy as np
import ot
from scipy.spatial.distance import cdist

from knot_runner.util.errors import UserError

#: pivots that the network simplex may take: this and ``PIVOTS_PER_POINT`` (n + m). Plans of 1000 to 3000 points took 15
#: to 100 a point; POT's own default, 100 000 in all, leaves costs .8 % too high at 3000 x 3000 points in 784 dimensions
PIVOTS = 1_000_000
PIVOTS_PER_POINT = 1_000
#: up to so many features, differences are as fast as a matrix product, and keep all digits
FEW_FEATURES = 16
#: POT's result codes
OPTIMAL, STOPPED = 1, 3


def squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """||x_i - y_j||^2 [n, m] of points [n, d] and [m, d].

    Of up to 16 features to full precision; of more by a matrix product about the mean of y, to about 1e-15 times the
    largest squared norm there.

    >>> squared_distances(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0]]))
    array([[ 0.],
           [25.]])
    """
    if x.shape[1] <= FEW_FEATURES:
        return cdist(x, y, "sqeuclidean")
    centre = y.mean(0)
    x, y = x - centre, y - centre
    norms = np.einsum("ij,ij->i", x, x)[:, None] + np.einsum("ij,ij->i", y, y)
    return np.maximum(norms - 2 * (x @ y.T), 0.0)


def optimal_plan(
    cost: np.ndarray, a: np.ndarray | None = None, b: np.ndarray | None = None, cap: int | None = None
) -> tuple[np.ndarray, float]:
    """The plan [n, m] of least total ``cost`` [n, m] between masses a [n] and b [m], and that total.

    Plan and total are in the unit of a and b, which must have one sum; None = equal masses, of the other's sum, and of
    sum 1 where both are None. Whole numbers stay whole. ``cap``: pivots at most; None = as many as are needed.

    Raises :class:`UserError` for costs that are not finite, ValueError for masses that do not fit. Warns
    (RuntimeWarning) where the cap was hit: the plan is then not optimal, and after few pivots its marginals are wrong.
    """
    if not np.isfinite(cost).all():
        raise UserError("samples: distances between them are not finite; values are too large")
    a, b, unit = _masses(cost.shape, a, b)
    cap = PIVOTS + PIVOTS_PER_POINT * sum(cost.shape) if cap is None else cap
    # the larger side first: the simplex is 1.4 to 2.7 times as fast where the sides differ much
    if cost.shape[0] >= cost.shape[1]:
        plan = _solved(cost, a, b, cap)
    else:
        plan = _solved(np.ascontiguousarray(cost.T), b, a, cap).T
    return plan / unit, float(np.vdot(plan, cost)) / unit


def _masses(shape: tuple[int, ...], a: np.ndarray | None, b: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, float]:
    """a [n], b [m] with defaults filled in, and the divisor of the plan."""
    n, m = shape
    if a is None and b is None:
        unit = math.lcm(n, m)
        return np.full(n, unit / n), np.full(m, unit / m), float(unit)
    a = np.full(n, b.sum() / n) if a is None else np.asarray(a, dtype=np.float64)
    b = np.full(m, a.sum() / m) if b is None else np.asarray(b, dtype=np.float64)
    if a.shape != (n,) or b.shape != (m,):
        raise ValueError(f"masses {a.shape} and {b.shape} do not fit costs {shape}")
    if not (a.min() >= 0 and b.min() >= 0 and 0 < a.sum() < np.inf and math.isclose(a.sum(), b.sum(), rel_tol=1e-9)):
        raise ValueError(f"masses must be at least 0, of one sum: {a.sum()} and {b.sum()}")
    return a, b, 1.0


def _solved(cost: np.ndarray, a: np.ndarray, b: np.ndarray, cap: int) -> np.ndarray:
    with warnings.catch_warnings(action="ignore"):  # POT's warning on the cap: repeated below with numbers
        plan, log = ot.emd(a, b, cost, numItermax=cap, log=True, center_dual=False, check_marginals=False)
    if log["result_code"] == STOPPED:
        sizes = f"{cost.shape[0]} x {cost.shape[1]} points"
        text = f"network simplex stopped after {cap} pivots on {sizes}: its plan is not optimal"
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    elif log["result_code"] != OPTIMAL:
        raise FloatingPointError(f"network simplex: {log['warning']}")
    return plan
