"""The transport loss T_eps(p, q) of KNOT (eq. 1) with the dual potential as its gradient (Algorithm 1, eq. 4).

    T_eps(p, q) = min over pi in Pi(p, q) of  <pi, C> + eps KL(pi | p x q)          (eq. 1; not debiased)
    dT / dp     = f, the potential of p                                              (eq. 4, by the envelope theorem)

f is unique up to a constant, which does not matter on the simplex. The returned gradient is the gradient along the
simplex: f minus its mean. KNOT's loss (eq. 3) is a weighted sum of T over teachers, where p is the student's
output. In Algorithm 1 as printed, lines 5 and 6 have the wrong sign. Both lines also use the logarithm of the student's
output, although one of them needs that of the teacher's output.

The paper's definition of the loss differs from the published code, and both versions are available. The solver
``newton`` computes the T_eps that eq. 1 defines. The solver ``geomloss`` with ``scaling=0.5`` makes the same call as
the published code. This call halves eps after each update, makes about 14 updates in total, and **does not converge**.

An example: five sentiment labels, eps = .001, p and q drawn from Dirichlet(.5). The costs of this call are then about
17% too low. For flatter p and q, the error is larger. The gradients are too small, and their mean cosine with the true
gradient is about .9. With ``scaling=0.99``, the costs are correct within a few tenths of a percent, but the computation
takes ten times as long.

:func:`exact_transport` computes W1 (eps = 0) for any label space with the fastest exact method. Labels on a line or at
leaves of a tree have closed forms. For at most ``MOST_ENUMERATED`` other labels, the vertices of the dual program are
compared (trees.py). For more labels, the library POT solves the rows one by one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from knot_runner.transport.costs import Solution, Solver, TransportError, host_cost, unit_mass
from knot_runner.transport.newton import semi_dual
from knot_runner.transport.trees import MOST_ENUMERATED, label_tree, line, tight_trees, tree
from knot_runner.util.errors import UserError

#: An error is raised if the marginal error of a row exceeds this factor times the tolerance.
SLACK = 1e3


def transport_loss(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> Tensor:
    """Return the transport costs from p to q, for n labels at ``points`` [n, d].

    p and q have shape [..., n], and the result has shape [...]. p and q are broadcast: p of shape [B, 1, n] and q of
    shape [B, K, n] give costs of shape [B, K]. The result can be differentiated only once, and only with respect
    to p. If a row of p is not finite, the cost of this row is nan.

    Raises:
        TransportError: A row of q or a finite row of p is not a probability vector, or a solver did not converge.

    >>> newton = Solver("newton", epsilon=0.001, tolerance=1e-9, scaling=0.5)
    >>> points = torch.tensor([[0.0], [1.0], [2.0]])
    >>> p = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    >>> value = transport_loss(p, torch.tensor([0.0, 0.0, 1.0]), points, newton)
    >>> value.backward()
    >>> value, p.grad
    (tensor(1.5000, grad_fn=<ViewBackward0>), tensor([ 1.,  0., -1.]))
    """
    n = len(points)
    if p.shape[-1] != n or q.shape[-1] != n:
        raise ValueError(f"p {tuple(p.shape)} and q {tuple(q.shape)} need one entry for each of the {n} points")
    shape = torch.broadcast_shapes(p.shape, q.shape)
    student = p.expand(shape).reshape(-1, n)
    teacher = q.detach().expand(shape).reshape(-1, n)
    finite = student.isfinite().all(-1, keepdim=True)
    clean = student.detach().where(finite, 1 / n)
    _check(clean, "p")
    _check(teacher, "q")
    value, potential = SOLVERS[solver.name](clean, teacher, points, solver)
    value = value.where(finite[:, 0], torch.nan).to(p.dtype)
    potential = (potential - potential.mean(-1, keepdim=True)).where(finite, torch.nan).to(p.dtype)
    return _Envelope.apply(student, value, potential).reshape(shape[:-1])


def _check(rows: Tensor, name: str) -> None:
    total = rows.sum(-1)
    bad = ~((rows >= 0).all(-1) & ((total - 1).abs() < 1e-2))  # also true for nan
    if bool(bad.any()):
        raise TransportError(f"{int(bad.sum())} of {len(rows)} rows of {name} are not probabilities that sum to 1")


class _Envelope(torch.autograd.Function):
    """Autograd function: values of solved problems, shape [N]; the gradient with respect to p is ``potential``."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, value: Tensor, potential: Tensor) -> Tensor:
        ctx.save_for_backward(potential)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (potential,) = ctx.saved_tensors
        return grad[:, None] * potential, None, None


# ------------------------------------------------- solvers: (p [N, n], q [N, n], points, settings) -> value, potential


def newton(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> Solution:
    """Return the entropic costs [N] and the potentials [N, n] of p, by Newton's method in float64 (newton.py).

    Raises:
        TransportError: The marginal error of a row exceeds 1000 times ``solver.tolerance``.
    """
    solved = semi_dual(p, q, host_cost(points), solver.epsilon, solver.tolerance)
    missed = ~(solved.marginal_error <= SLACK * solver.tolerance)  # also true for nan
    if bool(missed.any()):
        raise TransportError(
            f"{int(missed.sum())} of {len(p)} transport problems did not converge: the largest marginal error is "
            f"{float(solved.marginal_error.max()):.1e} at epsilon={solver.epsilon:g}, tolerance={solver.tolerance:g}"
        )
    return solved.value, solved.f


def geomloss(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> Solution:
    """Return the costs [N] and gradients [N, n] that geomloss computes. The call is the same as in the published code.

    The computation has the precision of p, and convergence is not checked. The published runs used geomloss 0.2.4. The
    costs of geomloss 0.3.1 are 2e-5 to 6e-5 larger.
    """
    from geomloss import SamplesLoss

    call = SamplesLoss("sinkhorn", p=1, blur=solver.epsilon, debias=False, scaling=solver.scaling, backend="tensorized")
    places = points.to(p.dtype).repeat(len(p), 1, 1)
    with torch.enable_grad():
        weights = p.clone().requires_grad_()
        value = call(weights, places, q.to(p.dtype), places)
        (gradient,) = torch.autograd.grad(value.sum(), weights)
    return value.detach(), gradient


def exact(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> Solution:
    """Return W1 [N] between p and q, and potentials [N, n] of p. The library POT computes both by linear programming.

    This slow reference solves the rows one by one on the CPU, in about 0.1 ms each. If several potentials are optimal,
    one of them is returned.
    """
    import numpy as np
    import ot

    cost = host_cost(points).numpy()
    a = unit_mass(p).cpu().numpy()
    b = unit_mass(q).cpu().numpy()
    values = np.empty(len(a))
    potentials = np.empty(a.shape)
    for i in range(len(a)):
        values[i], log = ot.emd2(a[i], b[i], cost, log=True, return_matrix=False)
        if log["warning"] is not None:
            raise TransportError(f"row {i}: {log['warning']}")
        # POT's potential is undefined where p is 0; the c-transform fixes it and agrees with POT elsewhere
        held = b[i] > 0
        potentials[i] = (cost[:, held] - log["v"][held]).min(1)
    return torch.from_numpy(values).to(p.device), torch.from_numpy(potentials).to(p.device)


SOLVERS = {
    "newton": newton,
    "geomloss": geomloss,
    "exact": exact,
    "line": line,
    "tree": tree,
}


#: Number of rows that are compared with all vertices at once.
ROWS_AT_ONCE = 16384


def exact_transport(p: Tensor, q: Tensor, points: Tensor) -> Solution:
    """Return W1 [N] between each row of p and the corresponding row of q, and the potentials [N, n].

    p and q have shape [N, n], and their rows are scaled to sum to 1. W1 is computed in float64, in the units of
    ``points`` [n, d]. A potential is a subgradient of W1 with respect to p, up to a constant.
    """
    p = unit_mass(p)
    q = unit_mass(q)
    points = points.double()
    name = _closed_form(points)
    if name != "exact" or len(points) > MOST_ENUMERATED:
        return SOLVERS[name](p, q, points, Solver(name, epsilon=0.0, tolerance=1e-9, scaling=0.5))
    vertices = torch.from_numpy(tight_trees(host_cost(points).numpy())[0])
    values = torch.empty(len(p), dtype=torch.float64)
    potentials = torch.empty(p.shape, dtype=torch.float64)
    for rows in torch.arange(len(p)).split(ROWS_AT_ONCE):
        values[rows], best = ((p[rows] - q[rows]) @ vertices.T).max(1)
        potentials[rows] = vertices[best]
    return values, potentials


def _closed_form(points: Tensor) -> str:
    """Return ``line`` or ``tree`` if labels at ``points`` have the closed form of this solver, otherwise ``exact``."""
    if points.shape[1] == 1:
        return "line"
    try:
        label_tree(points)
    except UserError:
        return "exact"
    return "tree"
