"""Entropic optimal transport of a distribution to itself: the plan is symmetric, so both potentials are one."""

from __future__ import annotations

from knot_runner.transport.arrays import FloatArray, library, log_sum_exp
from knot_runner.transport.small_epsilon import masses_logarithm

#: relative error of an exponential, in units of 1 + max(cost) / eps
_ROUNDING = 1e-15
ITERATIONS = 400


def fixed_point(q: FloatArray, cost: FloatArray, epsilon: float) -> tuple[FloatArray, int]:
    """f + eps log q [n, N] with f the potential of OT_eps(q, q) for q [n, N], and the iterations; float64.

    ``cost`` [n, n, 1]: Euclidean distances. f is the fixed point of the soft minimum, which has no gauge freedom and is
    unique however small exp(-C / eps) is. f is repeatedly replaced by the mean of f and its soft minimum; near the
    fixed point that halves the error at least, since exp(-C / eps) is positive definite for such C (as geomloss does
    for its debiasing; Feydy et al. 2019, section 3.1).
    """
    masses = epsilon * masses_logarithm(q)
    f = library(q).where(q > 0, -0.5 * masses, 0.0)
    enough, iterations, change = _ROUNDING * (epsilon + float(cost.max())), 0, None
    while iterations < ITERATIONS and (change is None or bool((abs(change) > enough).any())):
        change = 0.5 * (-epsilon * log_sum_exp((f + masses - cost) / epsilon, 1) - f)
        f, iterations = f + change, iterations + 1
    return f + masses, iterations
