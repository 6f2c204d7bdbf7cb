"""Entropic optimal transport between distributions on a few labels: a batched Newton method on the semi-dual.

Problem (KNOT section 1.1, not debiased), for every row p, q of a batch and one cost matrix C::

    OT_eps(p, q) = min over pi in Pi(p, q) of  <pi, C> + eps KL(pi | p x q)

Its dual is ``max <p, f> + <q, g> - eps (<p x q, exp((f + g - C) / eps)> - 1)``. For a fixed g the best f is the soft
minimum of Algorithm 1, ``f_i = -eps log sum_j q_j exp((g_j - C_ij) / eps)``, which is defined where p_i = 0 too.
Put back, it leaves a concave function of g alone. With ``h_j = g_j + eps log q_j`` the masses q leave the exponent::

    D(h) = <q, h> + <p, f(h)> + const,    f_i = -eps log sum_j exp((h_j - C_ij) / eps)
    dD/dh = q - P,                        P_j = sum_i p_i s_ij,   s_i = softmax_j((h_j - C_ij) / eps)
    -eps D'' = Laplacian of the graph on the labels whose edge j-k weighs w_jk = sum_i p_i s_ij s_ik

Four things make this quick and safe where a fixed Sinkhorn schedule is neither:

* The Laplacian is eliminated by additions of non-negative numbers only (as Grassmann, Taksar and Heyman do for Markov
  chains), so edges of 1 and of 1e-100 are solved side by side without cancellation. A conductance to an outer ground,
  about as small as rounding, fixes the gauge (h + c gives the same plan) and holds what is not determined.
* Every row lowers its own eps geometrically from a quarter of the largest cost, along the tangent dh/deps, as soon as
  it is within reach of Newton's method; no level is solved to the end but the last. (As eps falls, h becomes linear in
  it up to terms of exp(-1 / eps).)
* A step may change the exponents by ``CAP`` at most. If D turns out to fall beyond it, the row goes back and takes the
  length log(1 + w) / w instead (w: how much the full step would change the exponents), at which a log-sum-exp function
  is known to rise.
* Rows that have converged leave the batch.

Where p is q in all digits nothing must move, and what fixes the potentials are flows of exp(-C_ij / eps), far below
float64's digits of q. There f = g, and a fixed point gives them (symmetric.py). Near p = q (and at single labels where
p_j = q_j) q - P is computed from what moves alone, whose digits are kept down to 1e-290.

One thing is beyond float64: a group of labels that exchange much with each other, and nothing with the rest because
their masses in p and q are equal. Which of the many optimal potentials is returned then is carried over from larger
eps. Value and marginals are right all the same.

Everything is float64. Labels come first and rows last in the tensors below, so that each of torch's kernels runs along
the batch; a column of the Laplacian is one such kernel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.transport.symmetric import fixed_point

#: eps is multiplied by this at every level (.35: fewest iterations of .1 to .35 on Dirichlet(.5) and (.05) pairs)
RATIO = 0.35
#: a step changes no exponent by more than this
CAP = 4.0
#: a step that would change h by less than this times eps^2 / max(cost), and the exponents by less than 1, lets the row
#: go on to the next eps: the tangent is off by about the error of the exponents times max(cost) / eps
NEAR_OPTIMUM = 2.0
#: relative error of an exponential, in units of 1 + max(cost) / eps
NEWTON_ROUNDING = 1e-15
#: conductance from label j to the ground, times q_j, in the same units: above rounding
GROUND = 1e-14
#: the same, where nothing is seen to move: above the smallest numbers that have all digits
UNSEEN = 1e-290
#: less mass than this (float32 has none) counts as none
NOTHING = 1e-50
#: p and q that differ by less, relatively, in every label are equal up to the rounding of their sums
SAME = 2e-15
MAX_ITERATIONS = 400
#: bytes of one [labels, labels, rows] tensor: what a core's cache holds, and what a GPU takes at a time
NUMBERS_AT_ONCE = {"cpu": 2**20, "cuda": 2**28}


@dataclass
class SemiDual:
    """Solution of a batch of N problems on n labels, in float64."""

    #: [N] OT_eps(p, q)
    value: Tensor
    #: [N, n] potential of p: the gradient of ``value`` by p on the simplex, with mean 0
    f: Tensor
    #: [N, n] potential of q, also where q_j = 0
    g: Tensor
    #: [N] how far the plan's second marginal is from q (sum of absolute differences); the first is exact
    marginal_error: Tensor
    #: [N] Newton iterations
    iterations: Tensor


def semi_dual(p: Tensor, q: Tensor, cost: Tensor, epsilon: float, tolerance: float) -> SemiDual:
    """Solve the N problems p [N, n] against q [N, n] under ``cost`` [n, n] to a marginal error of ``tolerance``.

    Rows are brought to sum 1 in float64. Rows that do not get there within 400 iterations are returned as they are:
    look at ``marginal_error`` (rounding alone makes about 1e-16 max(cost) / epsilon of it).
    """
    p, q, cost = (t.detach().to(torch.float64) for t in (p, q, cost))
    room = NUMBERS_AT_ONCE["cpu" if p.device.type == "cpu" else "cuda"]
    rows = max(1, room // (8 * cost.numel()))
    parts = [
        _solve(a.T.contiguous(), b.T.contiguous(), cost[..., None], epsilon, tolerance)
        for a, b in zip(p.split(rows), q.split(rows), strict=True)
    ]
    return SemiDual(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _solve(p: Tensor, q: Tensor, cost: Tensor, epsilon: float, tolerance: float) -> tuple[Tensor, ...]:
    p, q = p / p.sum(0), q / q.sum(0)
    q = q.where(q > NOTHING, 0.0)
    h, iterations = _climb(p, q, cost, epsilon, tolerance)
    same = ((p - q).abs() <= SAME * q + NOTHING).all(0)
    if bool(same.any()):
        h[:, same], iterations[same] = fixed_point(q[:, same], cost, epsilon)
    f = -epsilon * torch.logsumexp((h - cost) / epsilon, 1)
    soft = -epsilon * torch.logsumexp((f[:, None] - cost) / epsilon + p.log()[:, None], 0)
    error = (((h - soft) / epsilon).exp() - q).abs().sum(0)  # P_j = sum_i p_i exp((f_i + h_j - C_ij) / eps)
    g = torch.where(q > 0, h - epsilon * q.log(), soft)
    value = (p * f).sum(0) + (q * g).sum(0)
    shift = f.mean(0)
    return value, (f - shift).T, (g + shift).T, error, iterations


@dataclass
class _Rows:
    """State of the rows still at work; the last axis of every tensor is the row."""

    index: Tensor
    p: Tensor
    q: Tensor
    #: q - p, of sum 0
    excess: Tensor
    h: Tensor
    eps: Tensor
    #: last step's direction, D's slope along it where it began (-1: nothing to check), and the cautious alternative
    step: Tensor
    slope: Tensor
    cautious: Tensor
    error: Tensor
    #: dh/deps as last known
    tangent: Tensor
    #: finished, and only waiting to be taken out; and after how many iterations
    done: Tensor
    count: Tensor

    def take(self, keep: Tensor) -> _Rows:
        return _Rows(*(getattr(self, f.name).index_select(-1, keep) for f in dataclasses.fields(self)))


def _climb(p: Tensor, q: Tensor, cost: Tensor, epsilon: float, tolerance: float) -> tuple[Tensor, Tensor]:
    """Maximise D for every row. Returns h [n, N] (-inf-like where q_j = 0) and the iterations [N]."""
    count = p.shape[1]
    start = torch.full((count,), max(epsilon, 0.25 * float(cost.max())), dtype=p.dtype, device=p.device)
    h = start * q.log().clamp(min=-1e4)  # g = 0; exp(-1e4) is 0, and stays finite under multiplication by 0
    index, flat, tangent = torch.arange(count, device=p.device), torch.zeros_like(h), q.where(q > 0, 1.0).log()
    none = torch.zeros_like(index)
    rows = _Rows(index, p, q, _excess(p, q), h, start, flat, -torch.ones_like(start), h, start, tangent, none > 0, none)
    best, iterations = torch.empty_like(h), torch.empty_like(index)
    for _ in range(MAX_ITERATIONS):
        _iterate(rows, cost, epsilon, tolerance)
        left = len(rows.done) - int(rows.done.sum())
        if left == 0:
            break
        # gathering the rest costs about a tenth of an iteration: wait until enough rows are done
        if left < 0.8 * len(rows.done):
            best[:, rows.index], iterations[rows.index] = rows.h, rows.count
            rows = rows.take((~rows.done).nonzero()[:, 0])
    best[:, rows.index], iterations[rows.index] = rows.h, rows.count
    return best, iterations


def _excess(p: Tensor, q: Tensor) -> Tensor:
    """q - p [n, N] without what rounding has added to its sum: 0 where both are equal in all digits."""
    excess = q - p
    sizes = excess.abs()
    return excess - sizes * (excess.sum(0) / sizes.sum(0).clamp(min=1e-300))


def _iterate(rows: _Rows, cost: Tensor, epsilon: float, tolerance: float) -> None:
    """One Newton step for every row that is not done, and on to the next eps for those that are near."""
    s, ps, z = _plans(rows, cost)
    residual, scale = _residual(rows, ps)
    error = residual.abs().sum(0)
    fell = (residual * rows.step).sum(0) < -0.1 * rows.slope
    back = (rows.slope > 0) & fell & (error > 0.5 * rows.error)

    final, reach = rows.eps <= epsilon, cost.amax() / rows.eps
    levels = not bool(final.all())
    step, tangent = _directions(rows, residual, scale, reach, s, ps, z if levels else None)
    width = step.amax(0) - step.amin(0)
    h = rows.h + step * torch.where(width < CAP, rows.eps, CAP / width * rows.eps)
    eps = rows.eps
    if levels:
        onward = (width < (NEAR_OPTIMUM / reach).clamp(max=1)) & ~final & ~back
        eps = torch.where(onward, (eps * RATIO).clamp(min=epsilon), eps)
        h += tangent * (eps - rows.eps)

    cautious = rows.h + step * (width.log1p() / width * rows.eps)
    rows.h = torch.where(rows.done, rows.h, torch.where(back, rows.cautious, h))
    rows.slope = torch.where(back | (width < 1), -1.0, (residual * step).sum(0))
    rows.step, rows.cautious, rows.error, rows.eps, rows.tangent = step, cautious, error, eps, tangent
    rows.count = rows.count + ~rows.done
    # the step leaves an error of the order of its square
    rows.done = rows.done | (final & ~back & (width * width <= tolerance))


def _directions(
    rows: _Rows, residual: Tensor, scale: Tensor, reach: Tensor, s: Tensor, ps: Tensor, z: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Newton's step, as a change of the exponents, and the tangent dh/deps (as it was if ``z`` is None)."""
    ground = scale * (GROUND * (1 + reach)) + rows.q * UNSEEN
    rhs = [residual]
    if z is not None:
        # eps dP/deps at fixed h; the ground pulls the tangent to what it was, so that it stays where no flow shows it
        spread = z - (s * z).sum(1, keepdim=True)
        rhs.append((ps * spread).sum(0) + ground * rows.tangent)
    steps = _eliminate(_graph(s, ps), ground, torch.stack(rhs, 1))
    alive = rows.q > 0  # a label without mass stays where it is
    # where every P_j is q_j up to rounding, a step would be noise
    settled = (residual.abs() <= NEWTON_ROUNDING * (1 + reach) * scale).all(0)
    step = (steps[:, 0] - (rows.q * steps[:, 0]).sum(0)).where(alive & ~settled, 0.0)
    return step, rows.tangent if z is None else steps[:, 1].where(alive, 0.0)


def _residual(rows: _Rows, ps: Tensor) -> tuple[Tensor, Tensor]:
    """q - P and the scale of its rounding errors, each [n, N].

    Mass that stays where it is cancels in ``q_j - P_j = (q_j - p_j) + sum_k (p_j s_jk - p_k s_kj)``, k other than j. So
    where less moves than a label has, the difference is known to the digits of what moves, be that exp(-300).
    """
    moving = ps.clone()
    moving.diagonal().zero_()
    away, here = moving.sum(1), moving.sum(0)
    moved = away + here + rows.excess.abs()
    few = moved < rows.q
    return (rows.excess + (away - here)).where(few, rows.q - ps.sum(0)), moved.minimum(rows.q)


def _plans(rows: _Rows, cost: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """s_ij, p_i s_ij and the exponents less their largest, each [n, n, N]."""
    z = (rows.h - cost).mul_(1 / rows.eps)
    z -= z.amax(1, keepdim=True)
    s = z.exp()
    s *= 1 / s.sum(1, keepdim=True)
    return s, s * rows.p[:, None], z


def _graph(s: Tensor, ps: Tensor) -> list[Tensor]:
    """Edge weights w_jk = sum_i p_i s_ij s_ik: for each k the [k, N] edges to the labels j < k."""
    return [(ps[:, :k] * s[:, k : k + 1]).sum(0) for k in range(s.shape[1])]


def _eliminate(edges: list[Tensor], ground: Tensor, rhs: Tensor) -> Tensor:
    """Solve (Laplacian of ``edges`` + diag(``ground``)) x = ``rhs``; rhs and x are [n, columns, N].

    Taking label k out of the graph joins its neighbours by edges w_jk w_lk / W_k and hands its right-hand side on in
    the same shares. Nothing is subtracted, so every entry keeps its relative accuracy.
    """
    n, columns, _ = rhs.shape
    # row k: the right-hand sides, the ground, then the edges to the labels below k
    first = columns + 1
    graph = rhs.new_empty(n, first + n, rhs.shape[-1])
    graph[:, :columns], graph[:, columns] = rhs, ground
    for k, edge in enumerate(edges):
        graph[k, first : first + k] = edge
    totals = []
    for k in reversed(range(n)):
        row = graph[k, : first + k]
        total = row[columns:].sum(0).add_(1e-300)  # a label without mass has no edge, and does not move
        totals.append(total)
        graph[:k, : first + k].addcmul_((row[first:] / total)[:, None], row)
    x = torch.empty_like(rhs)
    for k, total in enumerate(reversed(totals)):
        row = graph[k]
        x[k] = (row[:columns] + (row[first : first + k, None] * x[:k]).sum(0)) / total
    return x
