"""Entropic optimal transport between distributions on a few labels: a batched Newton method on the semi-dual.

Problem (KNOT eq. 1, not debiased), for every row p, q of a batch and one cost matrix C::

    OT_eps(p, q) = min over pi in Pi(p, q) of  <pi, C> + eps KL(pi | p x q)

The dual problem is ``max <p, f> + <q, g> - eps (<p x q, exp((f + g - C) / eps)> - 1)``. For a fixed g, the best f is
the soft minimum of Algorithm 1, ``f_i = -eps log sum_j q_j exp((g_j - C_ij) / eps)``. This formula also defines f_i
where p_i = 0. Inserting this f gives a concave function of g alone. With ``h_j = g_j + eps log q_j``, the masses q
vanish from the exponent::

    D(h) = <q, h> + <p, f(h)> + const,    f_i = -eps log sum_j exp((h_j - C_ij) / eps)
    dD/dh = q - P,                        P_j = sum_i p_i s_ij,   s_i = softmax_j((h_j - C_ij) / eps)
    -eps D'' = Laplacian of the graph on the labels whose edge j-k weighs w_jk = sum_i p_i s_ij s_ik

Newton's method (ascent.py) starts from the closed-form limit of small eps, computed in small_epsilon.py. The method
converges in one to three steps if eps is small compared with the distances of the labels. If a row does not converge
within ``MOST_STEPS`` iterations, or its limit is not unique, it starts again from a large eps. eps is then decreased in
levels. At each new level, h is extrapolated along its derivative dh/deps.

If p equals q in all digits, no mass moves. In this case f = g, and a fixed-point iteration computes both potentials
(small_epsilon.py). If p is close to q, or at a label j with p_j = q_j, the difference q - P is computed only from the
mass that moves. The result is then accurate even for a moving mass of 1e-290.

float64 cannot resolve one case: the labels of a group exchange much mass with each other, but none with other labels,
because the group's masses in p and q are equal. Many potentials are then optimal up to rounding, and the returned
potentials depend on the first levels of eps. The transport cost and the marginals are still correct.

All arrays are float64. NumPy does the arithmetic on the CPU, also for tensors on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from knot_runner.transport import ascent
from knot_runner.transport.small_epsilon import fixed_point, limit_potential, log_sum_exp, masses_logarithm
from knot_runner.transport.trees import transport_trees

#: Masses below this value count as 0. The value is far below the smallest float32.
NOTHING = 1e-50
#: p and q count as equal if their relative difference is at most this value for every label.
SAME = 2e-15
#: Maximum numbers of iterations: ``MOST_STEPS`` from the limit of small eps, and ``MAX_ITERATIONS`` from a large eps.
MOST_STEPS = 10
MAX_ITERATIONS = 400
#: Values of eps as fractions of the largest cost. eps counts as small up to ``SMALL``. Rows that start from a large eps
#: start from ``LARGEST_EPSILON``.
SMALL = 0.1
LARGEST_EPSILON = 0.25
#: Maximum size in bytes of an array of shape [labels, labels, rows], which fits into the cache of a core.
BYTES_AT_ONCE = 2**18


@dataclass
class SemiDual:
    """Solutions of N entropic transport problems on n labels, in float64."""

    #: [N] OT_eps(p, q)
    value: Tensor
    #: [N, n] potential of p: the gradient of ``value`` with respect to p on the simplex, with mean 0
    f: Tensor
    #: [N, n] potential of q, also where q_j = 0
    g: Tensor
    #: [N] sum of absolute differences between the plan's second marginal and q; the first marginal is exact
    marginal_error: Tensor
    #: [N] Newton iterations
    iterations: Tensor


def semi_dual(p: Tensor, q: Tensor, cost: Tensor, epsilon: float, tolerance: float) -> SemiDual:
    """Return the solutions of N transport problems. The marginals p and q have shape [N, n].

    ``cost`` has shape [n, n], and ``tolerance`` is the accepted marginal error. Rows of p and q are scaled to sum to 1.
    No exception is raised for a row that does not converge within 400 iterations, so check ``marginal_error``. Rounding
    contributes about ``1e-16 * max(cost) / epsilon`` to the marginal error.
    """
    # For the few labels of these problems, one transfer each way costs less than a hundred small GPU kernels.
    sources, targets, ground = (tensor.detach().to("cpu", torch.float64) for tensor in (p, q, cost))
    rows = max(1, BYTES_AT_ONCE // (8 * len(ground) ** 2))
    blocks = zip(sources.split(rows), targets.split(rows), strict=True)  # an empty batch gives one empty block
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        parts = [_solve(a.numpy().T + 0.0, b.numpy().T + 0.0, ground.numpy(), epsilon, tolerance) for a, b in blocks]
    columns = map(np.concatenate, zip(*parts, strict=True))
    return SemiDual(*(torch.as_tensor(column, device=p.device) for column in columns))


def _solve(p: ndarray, q: ndarray, ground: ndarray, epsilon: float, tolerance: float) -> tuple[ndarray, ...]:
    p = p / p.sum(0)
    q = q / q.sum(0)
    q = np.where(q > NOTHING, q, 0.0)
    h, iterations = _potential(p, q, ground, epsilon, tolerance)
    cost = ground[..., None]
    # If p equals q, the potentials depend on flows of the order of exp(-C / eps).
    # These flows are far below the precision of q in float64.
    same = (abs(p - q) <= SAME * q + NOTHING).all(0)
    if same.any():
        h[:, same], iterations[same] = fixed_point(q[:, same], cost, epsilon)
    f = -epsilon * log_sum_exp((h - cost) / epsilon, 1)
    soft = -epsilon * log_sum_exp((f[:, None] - cost) / epsilon + np.log(p)[:, None], 0)
    error = abs(np.exp((h - soft) / epsilon) - q).sum(0)  # P_j = sum_i p_i exp((f_i + h_j - C_ij) / eps)
    g = np.where(q > 0, h - epsilon * masses_logarithm(q), soft)
    value = (p * f).sum(0) + (q * g).sum(0)
    shift = f.mean(0)
    return value, (f - shift).T, (g + shift).T, error, iterations


def _potential(p: ndarray, q: ndarray, ground: ndarray, epsilon: float, tolerance: float) -> tuple[ndarray, ndarray]:
    """Return h [n, N] at the maximum of D, and the number of iterations [N]. Where q_j = 0, h is at most -1e8 eps."""
    cost = ground[..., None]
    largest = float(ground.max())
    start = max(epsilon, LARGEST_EPSILON * largest)
    trees = None
    if epsilon <= SMALL * largest:
        trees = transport_trees(ground)
    if trees is None:
        return _from_above(p, q, cost, start, epsilon, tolerance)
    excess = ascent.excess_of(p, q)
    limit, least = limit_potential(q, excess, trees, epsilon)
    rows = ascent.begin_ascent(p, q, limit, 0 * p[0] + epsilon, 0 * p)
    rows = ascent.climb(rows, cost, epsilon, tolerance, MOST_STEPS)
    h = rows.h
    iterations = rows.count
    # the flow over each edge, and p - q, must exceed the rounding error of the other flows
    seen = least > ascent.GROUND * (1 + largest / epsilon)
    different = abs((q - p).sum(0)) <= 0.01 * abs(excess).sum(0)
    rest = ~(rows.done & seen & different)
    if rest.any():
        h[:, rest], more = _from_above(p[:, rest], q[:, rest], cost, start, epsilon, tolerance)
        iterations[rest] += more
    return h, iterations


def _from_above(
    p: ndarray, q: ndarray, cost: ndarray, start: float, epsilon: float, tolerance: float
) -> tuple[ndarray, ndarray]:
    """Solve :func:`_potential`, starting from eps = ``start`` and g = 0 and decreasing eps."""
    logarithm = masses_logarithm(q)
    tangent = np.where(q > 0, logarithm, 0.0)
    rows = ascent.begin_ascent(p, q, start * logarithm, 0 * p[0] + start, tangent)
    rows = ascent.climb(rows, cost, epsilon, tolerance, MAX_ITERATIONS)
    return rows.h, rows.count
