"""Newton's method on the semi-dual D(h) of newton.py, for many problems (rows) at once, each with its own eps.

A step changes the exponents (h_j - C_ij) / eps by at most ``CAP``. If a full step decreases D, the row takes log(1 + w)
/ w times this step instead, where w is the change of the exponents by the full step. D contains log-sum-exp functions,
for which this step length guarantees an increase. A row may begin with an eps above the target. Each time that Newton's
method is near convergence, eps is multiplied by ``RATIO``, and h follows the tangent dh/deps. Only the problem with the
target eps is solved to the tolerance. Rows that have converged leave the batch.

The linear system of a step has the Laplacian of a graph on the labels as its matrix. The solution only adds
non-negative numbers, so weights of 1 and of 1e-100 can occur in one system without cancellation. Each label has an
additional edge to an outer ground with a weight about as small as rounding errors. This edge makes h unique: without
it, h + c would give the same plan for any constant c, and some components could be undetermined.

In the arrays below, labels are the first axis and rows the last, so that each operation runs along the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray


def eliminate(edges: ndarray, ground: ndarray, rhs: ndarray) -> ndarray:
    """Solve (Laplacian of ``edges`` + diag(``ground``)) x = ``rhs`` for N problems on n labels.

    ``rhs`` and x have shape [n, columns, N], with one or more right-hand sides per problem.

    ``edges`` [n, n, N]: entry [k, j] is the weight of the edge between the labels k and j < k; other entries are
    ignored. ``ground`` [n, N]: the weight of each label's edge to an outer ground.

    To eliminate label k, add the weight w_jk w_lk / W_k to the edge between each two neighbors j, l, where W_k is the
    sum of the weights at k. The right-hand side of label k is distributed to the neighbors j in the fractions w_jk /
    W_k (Grassmann, Taksar and Heyman, for Markov chains). Nothing is subtracted, so every entry keeps its relative
    accuracy.
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
    """State of the rows (problems) in the batch. The last axis of every array is the row."""

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
        """Return the rows where ``keep`` [N] is true."""
        return AscentRows(*(part[..., keep] for part in vars(self).values()))

    def update(self, part: AscentRows) -> None:
        """Copy h, done and count back from ``part``, which :meth:`take` returned."""
        self.h[:, part.index] = part.h
        self.done[part.index] = part.done
        self.count[part.index] = part.count


def begin_ascent(p: ndarray, q: ndarray, h: ndarray, eps: ndarray, tangent: ndarray) -> AscentRows:
    """Return the initial state of the ascent for N rows with the marginals ``p`` and ``q`` on n labels, shape [n, N].

    ``h`` [n, N]: initial values; ``eps`` [N]: initial eps of each row; ``tangent`` [n, N]: dh/deps.
    """
    none = p[0] < 0
    index = np.arange(len(eps))
    return AscentRows(index, p, q, excess_of(p, q), h, eps, tangent, 0 * h, 0 * eps - 1, h, eps, none, 0 * index)


def climb(rows: AscentRows, cost: ndarray, epsilon: float, tolerance: float, most: int) -> AscentRows:
    """Maximize D for every row, and return ``rows`` with the new h, done and count.

    ``cost`` has shape [n, n, 1]; ``most`` is the maximum number of iterations. Where q_j = 0, ``h`` is at most -1e8
    eps.
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
