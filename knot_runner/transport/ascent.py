"""Newton's method on the semi-dual D(h) of newton.py, for many problems (rows) at once, each with its own eps.

A Newton step is shortened if it would change an exponent ``(h_j - C_ij) / eps`` by more than ``CAP``. If the step still
decreases D, the row takes ``log(1 + w) / w`` times the full Newton step instead. Here, w is the largest change of an
exponent by the full step, minus the smallest change. D consists of log-sum-exp functions, for which this step length
guarantees an increase.

A row may begin with an eps above the target. When Newton's method is near convergence, eps is multiplied by ``RATIO``,
and h is extrapolated along its derivative dh/deps (the tangent). Only the problem with the target eps is solved to the
tolerance. Rows that have converged leave the batch.

The matrix of a step's linear system is the Laplacian of a graph on the labels. :func:`eliminate` solves the system
without cancellation, even if weights range from 1e-100 to 1. Each label also has an edge to an outer ground node, with
a weight about as small as rounding errors. These edges make h unique: without them, h + c would give the same transport
plan for any constant c.

In the arrays below, the first axis is the label and the last axis is the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray


def eliminate(edges: ndarray, ground: ndarray, rhs: ndarray) -> ndarray:
    """Return the solution x of ``(L + diag(ground)) x = rhs``, for N problems on n labels.

    L is the Laplacian of a graph on the labels. w_jk is the weight of the edge between the labels j and k, and W_k is
    the sum of the weights of all edges at k. The labels are eliminated one by one. Eliminating label k adds the weight
    ``w_jk * w_lk / W_k`` to the edge between any two neighbors j and l of k. Nothing is subtracted, so every entry of x
    keeps its relative accuracy. Grassmann, Taksar and Heyman introduced this elimination for Markov chains.

    Args:
        edges: Edge weights, shape [n, n, N]. For j < k, entry [k, j] is the weight of the edge between the labels k
            and j. Other entries are ignored.
        ground: The weight of each label's edge to an outer ground node, shape [n, N].
        rhs: One or more right-hand sides per problem, shape [n, columns, N]. The result has the same shape.
    """
    n, columns, _ = rhs.shape
    # row k: the right-hand sides, the ground, then the edges to the labels below k
    first = columns + 1
    graph = np.concatenate([rhs, ground[:, None], edges], 1)
    totals = np.empty_like(ground)
    for k in reversed(range(n)):
        row = graph[k, : first + k]
        totals[k] = row[columns:].sum(0) + 1e-300  # a label without mass has no edge and does not move
        graph[:k, : first + k] += (row[first:] / totals[k])[:, None] * row
    x = np.empty_like(rhs)
    for k in range(n):
        row = graph[k]
        x[k] = (row[:columns] + (row[first : first + k, None] * x[:k]).sum(0)) / totals[k]
    return x


#: Factor by which eps is lowered. Among the values from .1 to .35, .35 needs the fewest iterations on pairs from
#: Dirichlet(.5) and Dirichlet(.05).
RATIO = 0.35
#: Maximum change of an exponent by a step.
CAP = 4.0
#: A row moves on to the next eps if a step would change h by less than this times eps^2 / max(cost), and the exponents
#: by less than 1. The error of the tangent is about the error of the exponents times max(cost) / eps.
NEAR_OPTIMUM = 2.0
#: Relative error of an exponential, in units of 1 + max(cost) / eps.
NEWTON_ROUNDING = 1e-15
#: Weight of the edge from a label to the ground, relative to the mass that moves at the label, in units of 1 +
#: max(cost) / eps. This weight is larger than rounding errors.
GROUND = 1e-14
#: Minimum weight of the edge from label j to the ground, relative to q_j. This weight is above the smallest normal
#: float64.
UNSEEN = 1e-290


@dataclass
class AscentRows:
    """State of an ascent on several transport problems, called rows.

    The last axis of every array has one entry per row.
    """

    # Rows are the last axis, so that each operation runs along the batch.
    index: ndarray
    p: ndarray
    q: ndarray
    #: q - p, of sum 0
    excess: ndarray
    h: ndarray
    eps: ndarray
    #: last computed value of dh/deps
    tangent: ndarray
    #: direction of the last step
    step: ndarray
    #: slope of D along the last step, at the start of the step; -1 if the step needs no check
    slope: ndarray
    #: h after a shorter step in place of the last step; used if the last step decreased D
    cautious: ndarray
    #: marginal error before the last step
    error: ndarray
    #: whether the row has converged
    done: ndarray
    #: number of iterations of the row
    count: ndarray

    def take(self, keep: ndarray) -> AscentRows:
        """Return the state of the rows for which ``keep`` [N] is true."""
        return AscentRows(*(part[..., keep] for part in vars(self).values()))

    def update(self, part: AscentRows) -> None:
        """Copy ``h``, ``done`` and ``count`` from ``part``, a result of :meth:`take`, back into this state."""
        self.h[:, part.index] = part.h
        self.done[part.index] = part.done
        self.count[part.index] = part.count


def begin_ascent(p: ndarray, q: ndarray, h: ndarray, eps: ndarray, tangent: ndarray) -> AscentRows:
    """Return the initial state of the ascent on the semi-dual D(h) (newton.py), for N problems (rows) on n labels.

    Args:
        p: First marginal of each row, shape [n, N].
        q: Second marginal of each row, shape [n, N].
        h: Initial h of each row, shape [n, N].
        eps: Initial eps of each row, shape [N].
        tangent: Initial dh/deps of each row, shape [n, N].
    """
    none = p[0] < 0
    index = np.arange(len(eps))
    return AscentRows(index, p, q, excess_of(p, q), h, eps, tangent, 0 * h, 0 * eps - 1, h, eps, none, 0 * index)


def climb(rows: AscentRows, cost: ndarray, epsilon: float, tolerance: float, most: int) -> AscentRows:
    """Maximize the semi-dual D (newton.py) for every row. Return ``rows`` with the new ``h``, ``done`` and ``count``.

    For labels with q_j = 0, h must initially be at most ``-1e8 * eps``.

    Args:
        rows: The initial state, which is changed in place.
        cost: The costs between labels, shape [n, n, 1].
        epsilon: The target eps.
        tolerance: The accepted marginal error.
        most: The maximum number of iterations.
    """
    whole = rows
    levels = not (rows.eps <= epsilon).all()
    for _ in range(most):
        _iterate(rows, cost, epsilon, tolerance, levels)
        if rows.done.all():
            break
        if rows.done.mean() > 0.2:  # copying the remaining rows costs about a tenth of an iteration
            whole.update(rows)
            rows = rows.take(~rows.done)
        levels = levels and not (rows.eps <= epsilon).all()
    whole.update(rows)
    return whole


def excess_of(p: ndarray, q: ndarray) -> ndarray:
    """Return q - p, shape [n, N], corrected so that each column sums to 0. Entries are 0 where p and q are equal."""
    excess = q - p
    sizes = abs(excess)
    return excess - sizes * (excess.sum(0) / (sizes.sum(0) + 1e-300))


def _iterate(rows: AscentRows, cost: ndarray, epsilon: float, tolerance: float, levels: bool) -> None:
    """Take one Newton step for each row that is not done. With ``levels``, a converged row gets the next lower eps."""
    s, ps, z = _plans(rows, cost)
    residual, scale = _residual(rows, ps)
    error = abs(residual).sum(0)
    fell = (residual * rows.step).sum(0) < -0.1 * rows.slope
    back = (rows.slope > 0) & fell & (error > 0.5 * rows.error)

    final = rows.eps <= epsilon
    reach = cost.max() / rows.eps
    step, tangent = _directions(rows, residual, scale, reach, s, ps, z if levels else None)
    width = np.amax(step, 0) - np.amin(step, 0)
    h = rows.h + step * np.where(width < CAP, rows.eps, CAP / width * rows.eps)
    eps = rows.eps
    if levels:
        onward = (width * reach < NEAR_OPTIMUM) & (width < 1) & ~final & ~back
        eps = np.where(onward, np.where(eps * RATIO < epsilon, epsilon, eps * RATIO), eps)
        # As eps decreases, h becomes a linear function of eps, up to terms of exp(-1 / eps).
        h += tangent * (eps - rows.eps)

    cautious = rows.h + step * (np.log1p(width) / (width + 1e-300) * rows.eps)
    rows.h = np.where(rows.done, rows.h, np.where(back, rows.cautious, h))
    rows.slope = np.where(back | (width < 1), -1.0, (residual * step).sum(0))
    rows.step, rows.cautious, rows.error, rows.eps, rows.tangent = step, cautious, error, eps, tangent
    rows.count = rows.count + ~rows.done
    # the error after the step is of the order of the squared step
    rows.done = rows.done | (final & ~back & (width * width <= tolerance))


def _directions(
    rows: AscentRows,
    residual: ndarray,
    scale: ndarray,
    reach: ndarray,
    s: ndarray,
    ps: ndarray,
    z: ndarray | None,
) -> tuple[ndarray, ndarray]:
    """Return the Newton step, as a change of the exponents, and the tangent dh/deps (unchanged if ``z`` is None)."""
    ground = scale * (GROUND * (1 + reach)) + rows.q * UNSEEN
    rhs = [residual]
    if z is not None:
        # eps dP/deps at fixed h; if no flow determines the tangent, the edge to the ground keeps its last value
        spread = z - (s * z).sum(1)[:, None]
        rhs.append((ps * spread).sum(0) + ground * rows.tangent)
    steps = eliminate(_graph(s, ps), ground, np.stack(rhs, 1))
    alive = rows.q > 0  # a label without mass stays where it is
    # if every P_j equals q_j up to rounding, a step would be a rounding error
    settled = (abs(residual) <= NEWTON_ROUNDING * (1 + reach) * scale).all(0)
    step = np.where(alive & ~settled, steps[:, 0] - (rows.q * steps[:, 0]).sum(0), 0.0)
    return step, rows.tangent if z is None else np.where(alive, steps[:, 1], 0.0)


def _residual(rows: AscentRows, ps: ndarray) -> tuple[ndarray, ndarray]:
    """Return q - P, and the scale of the rounding errors of q - P, each of shape [n, N].

    P_j is the mass that arrives at label j. The mass that does not move cancels in ``q_j - P_j = (q_j - p_j) + sum_k
    (p_j s_jk - p_k s_kj)``, for k other than j. If only part of a label's mass moves, the difference is as accurate as
    the moving mass, even for exp(-300).
    """
    labels = np.arange(len(ps))
    moving = ps.copy()
    moving[labels, labels] = 0.0
    away = moving.sum(1)
    here = moving.sum(0)
    moved = away + here + abs(rows.excess)
    few = moved < rows.q
    return np.where(few, rows.excess + (away - here), rows.q - ps.sum(0)), np.minimum(moved, rows.q)


def _plans(rows: AscentRows, cost: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """Return s_ij, p_i s_ij and the exponents minus their maximum, each [n, n, N]."""
    z = rows.h - cost
    z *= 1 / rows.eps
    z -= np.amax(z, 1)[:, None]
    s = np.exp(z)
    s *= (1 / s.sum(1))[:, None]
    return s, s * rows.p[:, None], z


def _graph(s: ndarray, ps: ndarray) -> ndarray:
    """Return edge weights w_jk = sum_i p_i s_ij s_ik at [k, j] for labels j < k, [n, n, N]; others are undefined."""
    edges = np.empty_like(s)
    for k in range(1, len(s)):
        edges[k, :k] = (ps[:, :k] * s[:, k : k + 1]).sum(0)
    return edges
