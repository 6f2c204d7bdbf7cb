"""Exact optimal plans from few sources to many sinks, each with equal masses, by the use of approximate potentials.

The plan maximizes ``sum_sj P_sj A_sj`` for scores A. Scores are inner products. They are equivalent to squared
Euclidean costs, because the squared norms in these costs do not depend on the plan. The plan is optimal if there are
dual potentials h of the sources ("heights") such that each sink j receives mass only from sources s with the largest
``A_sj + h_s``. With good heights, most sinks have a unique best source and are assigned to this source ("settled"). The
network simplex assigns only the sinks with two almost equally good sources, and the sinks that balance the masses. Then
every settled sink is checked against the simplex's potentials. Sinks that fail are added to the simplex until no sink
fails. The plan is therefore optimal, up to rounding, for any initial heights.

The initial heights are those of FedWaD's previous iteration. They are improved by Newton's method on the smoothed
semi-dual ``max over h of sum_s n/S h_s - sum_j eps log sum_s exp((A_sj + h_s) / eps)`` with a decreasing eps.

Measured (784 features, S=10, after the first iteration): 0.30 instead of 0.47 ms with 600 sinks, 1.1 instead of 6.1 ms
with 3000.
"""

from __future__ import annotations

import math

import numpy as np
import ot
from numpy import ndarray

from knot_runner.transport.federated.plan import OPTIMAL, PIVOTS, PIVOTS_PER_POINT

#: Number of sinks that the network simplex assigns at first: ``OPEN`` per source, plus twice the number of sinks that
#: balance the masses.
OPEN = 8
#: With at most this number of sinks per source, the network simplex assigns all sinks.
SINKS_PER_SOURCE = OPEN
#: eps is halved from ``FIRST`` to ``LAST`` S / n. The unit is about the mean difference of a sink's best and second
#: best scores: the mean difference of a sink's best and mean scores, divided by 1 + log S.
FIRST, LAST = 0.2, 12.0
#: Maximum number of Newton steps; maximum change of a height in a step, in units of eps; tolerated fraction of mass
#: that is not balanced.
STEPS, STRIDE, NEAR = 8, 3.0, 0.04
#: A settled sink's score may be below the best score by this number of rounding errors of the largest score.
ROUNDING_UNITS = 64


def best_plan(scores: ndarray, heights: ndarray | None, plan: ndarray) -> ndarray:
    """Write the plan with the largest total score into ``plan`` [S, n]; return the sources' optimal potentials [S].

    The rows of ``scores`` [S, n] are sources of mass n / S each; the columns are sinks of mass 1. The potentials are
    called heights. ``heights`` [S]: initial values; None if unknown. The network simplex uses float64; all other
    calculations use the dtype of ``scores``, float32 or float64.
    """
    sources, sinks = scores.shape
    if heights is None or sinks <= SINKS_PER_SOURCE * sources:
        return _simplex(scores, np.full(sources, sinks / math.gcd(sources, sinks)), plan)
    shares = _balanced(scores, heights)
    nearest, sure = shares.argmax(0), shares.max(0)
    moving = np.abs(np.bincount(nearest, minlength=sources) - sinks / sources).sum() / 2
    left = int(2 * moving) + OPEN * sources
    while left < sinks:
        unsettled = sure <= np.partition(sure, left)[left]
        if _room(nearest[~unsettled], sources, sinks).min() > 0:
            return _settle(scores, nearest, unsettled, plan)
        left *= 2  # more sinks are settled at a source than its mass allows
    return best_plan(scores, None, plan)


def _balanced(scores: ndarray, heights: ndarray) -> ndarray:
    """Improve the heights h by Newton's method; return the mass that each source sends to each sink, [S, n].

    These masses are softmax((A + h) / eps) over the sources.
    """
    sources, sinks = scores.shape
    heights = heights.astype(scores.dtype)
    eps = 0.0
    last = 0.0
    for step in range(STEPS):
        shares = scores + heights[:, None]
        top = shares.max(0)
        if step == 0:
            unit = float(top.sum() - shares.sum() / sources) / (sinks * (1 + math.log(sources)))
            if not unit > 0:  # all scores are equal
                return np.full_like(scores, 1 / sources)
            eps, last = FIRST * unit, min(FIRST, LAST * sources / sinks) * unit
        shares -= top
        shares *= 1 / eps
        np.exp(shares, out=shares)
        shares /= shares.sum(0)
        given = shares.sum(1)
        missing = sinks / sources - given
        if np.abs(missing).sum() < NEAR * sinks:
            if eps <= last:
                break
            eps = max(last, eps / 2)
        heights = heights + eps * _newton_step(shares, given, missing)
    return shares


def _newton_step(shares: ndarray, given: ndarray, missing: ndarray) -> ndarray:
    """Return the change of the heights [S] in units of eps. Its mean is 0: only differences of heights matter."""
    curvature = shares @ -shares.T
    curvature.flat[:: len(given) + 1] += given + 1e-6 * given.mean()  # zero for a source without sinks
    step = np.zeros_like(given)
    step[1:] = np.linalg.solve(curvature[1:, 1:], missing[1:])
    step -= step.mean()
    return step * min(1.0, STRIDE / max(np.abs(step).max(), 1e-300))


def _room(settled: ndarray, sources: int, sinks: int) -> ndarray:
    """Return the remaining mass of each source, shape [S], in units in which a sink receives S / gcd(S, n)."""
    common = math.gcd(sources, sinks)
    return sinks // common - np.bincount(settled, minlength=sources) * (sources // common)


def _settle(scores: ndarray, nearest: ndarray, unsettled: ndarray, plan: ndarray) -> ndarray:
    """Write the optimal plan and return the heights. A settled sink is assigned to its source in ``nearest`` [n]."""
    sources, sinks = scores.shape
    while True:
        columns = np.flatnonzero(unsettled)
        part = np.empty((sources, len(columns)))
        room = _room(nearest[~unsettled], sources, sinks)
        heights = _simplex(scores[:, columns], room.astype(float), part)
        wrong = _wrong(scores, heights, nearest) & ~unsettled
        if not wrong.any():
            break
        unsettled |= wrong
    plan[...] = 0
    plan[nearest, np.arange(sinks)] = 1
    plan[:, columns] = part
    return heights


def _simplex(scores: ndarray, room: ndarray, plan: ndarray) -> ndarray:
    """Write the optimal plan into ``plan`` [S, n], by the network simplex in integers; return the heights [S]."""
    sources, sinks = scores.shape
    unit = room.sum() / sinks
    cost = np.ascontiguousarray(scores.max() - scores.T, dtype=np.float64)  # POT's start needs costs of at least 0
    cap = PIVOTS + PIVOTS_PER_POINT * (sources + sinks)
    small_plan, log = ot.emd(
        np.full(sinks, unit), room, cost, numItermax=cap, log=True, center_dual=False, check_marginals=False
    )
    if log["result_code"] != OPTIMAL:
        raise FloatingPointError(f"network simplex on {sinks} x {sources} points: {log['warning']}")
    plan[...] = small_plan.T / unit
    return log["v"]


def _wrong(scores: ndarray, heights: ndarray, nearest: ndarray) -> ndarray:
    """Return for each sink, shape [n], whether a source is better than the assigned one by more than rounding."""
    lifted = scores + heights.astype(scores.dtype)[:, None]
    top = lifted.max(0)
    slack = ROUNDING_UNITS * np.finfo(scores.dtype).eps * np.abs(top).max()
    return lifted[nearest, np.arange(len(nearest))] < top - slack
