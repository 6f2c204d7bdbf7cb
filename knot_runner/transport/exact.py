"""The unregularised cost W1 (eps = 0) of any label space, many problems at once, by the fastest exact method for it.

Labels on a line and leaves of a tree have closed forms. For up to ``MOST_ENUMERATED`` labels anywhere else, the dual
programme is solved by comparing its vertices (vertices.py). For more labels POT is used, row by row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.transport.costs import ground_cost, unit_mass
from knot_runner.transport.loss import SOLVERS
from knot_runner.transport.solver import Solver
from knot_runner.transport.tree import tree_edges
from knot_runner.transport.vertices import MOST_ENUMERATED, tight_trees
from knot_runner.util.errors import UserError

#: Rows that are compared with all vertices at once.
ROWS_AT_ONCE = 16384


def exact_transport(p: Tensor, q: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """W1 [N] of the rows of p and q [N, n], and a potential of each [N, n]: a subgradient by p, up to a constant.

    In float64, in units of ``points`` [n, d]; rows are scaled to sum to 1.
    """
    p, q = unit_mass(p), unit_mass(q)
    points = points.double()
    name = _closed_form(points)
    if name != "exact" or len(points) > MOST_ENUMERATED:
        return SOLVERS[name](p, q, points, Solver(name, epsilon=0.0, tolerance=1e-9, scaling=0.5))
    vertices = dual_vertices(ground_cost(points))
    values, potentials = torch.empty(len(p), dtype=torch.float64), torch.empty(p.shape, dtype=torch.float64)
    for rows in torch.arange(len(p)).split(ROWS_AT_ONCE):
        values[rows], best = ((p[rows] - q[rows]) @ vertices.T).max(1)
        potentials[rows] = vertices[best]
    return values, potentials


def _closed_form(points: Tensor) -> str:
    """``line`` or ``tree`` where the labels allow it, else ``exact``."""
    if points.shape[1] == 1:
        return "line"
    try:
        tree_edges(ground_cost(points))
    except UserError:
        return "exact"
    return "tree"


def dual_vertices(cost: Tensor) -> Tensor:
    """Vertices [V, n] of {f: f_i - f_j <= cost_ij, f_0 = 0}, for distances of ``MOST_ENUMERATED`` points or fewer."""
    return torch.from_numpy(tight_trees(cost.numpy())[0])
