"""Potentials of entropic optimal transport in two cases: the limit of small eps (closed form), and p equal to q.

In the limit of small eps, mass moves only along the edges of a tree (trees.py), and over each edge in one direction
only. The flow over an edge is the difference between the masses of p and q on one side of the edge. Notation:

- ``s_ij = softmax_j((h_j - C_ij) / eps)``: the fraction of label i's mass that moves to label j (newton.py)
- ``U_u``: eps times the log of the sum of ``exp((h_k - C_uk) / eps)`` over all labels k that mass at node u can reach
- ``F``: the flow over an edge from node u to node v
- ``length``: the length of this edge
- ``A_u``: q_u plus the flows out of node u

The mass at a node is divided in the same fractions, independent of where the mass comes from. Therefore::

    exp((U_v - length) / eps) = exp(U_u / eps) F / A_u,     exp(h_j / eps) = exp(U_j / eps) q_j / A_j

Mass that moves against the direction of F is neglected. This mass is of the order of exp(-2 length / eps).

If p equals q, the plan is symmetric, so both potentials are equal (:func:`fixed_point`).
"""

from __future__ import annotations

import numpy as np
from numpy import ndarray

from knot_runner.transport.trees import TransportTrees

#: added to masses, so that the logarithm of 0 is finite
_TINY = 1e-300


def limit_potential(q: ndarray, excess: ndarray, trees: TransportTrees, epsilon: float) -> tuple[ndarray, ndarray]:
    """Return the potential h in the limit of small eps, and the smallest relative flow over an edge.

    n is the number of labels and N the number of problems. An edge divides its tree into two parts. In each part,
    ``|q - p|`` is summed. The relative flow over the edge is the flow divided by the smaller sum.

    If the smallest relative flow is as small as rounding errors, h is not reliable. If q = p in one whole part, the
    relative flow counts as 1. The potentials at the edge's ends are then chosen to be equal.

    Args:
        q: The second marginals, shape [n, N].
        excess: q - p, shape [n, N]. Each column sums to 0.
        trees: The trees along which mass can move.
        epsilon: The value of eps.

    Returns:
        ``h = g + eps * log(q)``, shape [n, N], up to a constant per column, and the smallest relative flow, shape [N].
        g is the dual potential of q. Where q = 0, h is about ``-1e8 * eps``.
    """
    lengths = trees.lengths
    below = trees.below
    lower = trees.lower
    upper = trees.upper
    if len(lengths) > 1:
        best = (trees.potentials @ excess).argmin(0)
        lengths = lengths[best]
        below = below[best]
        lower = lower[best]
        upper = upper[best]
    flow, moved = _flow(below, trees.labels @ excess)
    size = abs(flow)
    rises = (size + flow) / 2
    falls = (size - flow) / 2
    leaving = np.einsum("tev,et->vt", lower, rises) + np.einsum("tev,et->vt", upper, falls)
    through = np.log(trees.labels @ q + leaving + _TINY)
    at_tail = np.where(flow > 0, np.einsum("tev,vt->et", lower, through), np.einsum("tev,vt->et", upper, through))
    rise = lengths.T + epsilon * (np.log(size + _TINY) - at_tail)
    rise = np.where((rise > 0) & (size > 0), rise, 0.0)
    node = np.einsum("tev,et->vt", below, np.where(flow > 0, -rise, rise))
    least = np.amin(np.where(moved > 0, size / moved, 1.0), 0)
    return trees.labels.T @ (node - epsilon * through) + epsilon * masses_logarithm(q), least


def _flow(below: ndarray, excess: ndarray) -> tuple[ndarray, ndarray]:
    """Return, for each edge, the mass that leaves the part below it, and the mass that moves in one part: [E, N].

    ``below`` [1 or N, E, V], ``excess`` [V, N]. An edge divides the tree into two parts. Sums are taken over the part
    in which less mass moves, because this sum is more accurate.
    """
    above = 1 - below
    inside, outside = (np.einsum("tev,vt->et", part, abs(excess)) for part in (below, above))
    flow = np.where(inside < outside, -np.einsum("tev,vt->et", below, excess), np.einsum("tev,vt->et", above, excess))
    return flow, np.minimum(inside, outside)


def log_sum_exp(exponents: ndarray, axis: int) -> ndarray:
    """Return the log of the sum of exp(``exponents``) along ``axis``. At least one exponent must be above -inf."""
    largest = np.amax(exponents, axis, keepdims=True)
    logarithm: ndarray = largest.squeeze(axis) + np.log(np.exp(exponents - largest).sum(axis))
    return logarithm


def masses_logarithm(q: ndarray) -> ndarray:
    """Return log q, or -1e8 where q is 0.

    The value -1e8 is lower than any ``-cost / eps``. Unlike -inf, it gives 0 when multiplied by 0.
    """
    return np.where(q > 0, np.log(np.where(q > 0, q, 1.0)), -1e8)


#: relative error of an exponential, in units of 1 + max(cost) / eps
_ROUNDING = 1e-15
ITERATIONS = 400


def fixed_point(q: ndarray, cost: ndarray, epsilon: float) -> tuple[ndarray, int]:
    """Return ``f + eps * log(q)``, shape [n, N], and the number of iterations. f is the potential of OT_eps(q, q).

    ``cost`` [n, n, 1] must hold Euclidean distances. f is the unique fixed point of the soft minimum (newton.py).
    Each step replaces f by the average of f and its soft minimum. geomloss uses the same step for debiasing (Feydy et
    al. 2019, section 3.1). Near the fixed point, each step at least halves the error.
    """
    masses = epsilon * masses_logarithm(q)
    f = np.where(q > 0, -0.5 * masses, 0.0)
    enough = _ROUNDING * (epsilon + float(cost.max()))
    for iterations in range(1, ITERATIONS + 1):
        # exp(-C / eps) is positive definite for Euclidean C. Near the fixed point, each step thus halves the error.
        change = 0.5 * (-epsilon * log_sum_exp((f + masses - cost) / epsilon, 1) - f)
        f = f + change
        if not bool((abs(change) > enough).any()):
            return f + masses, iterations
    return f + masses, ITERATIONS
