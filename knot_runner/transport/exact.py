"""The unregularised cost W1 (eps = 0) of any label space, many problems at once, by the fastest exact way there is.

Labels on a line and leaves of a tree have closed forms. For up to ``MOST_ENUMERATED`` labels anywhere else, the dual
programme

    W1(p, q) = max over f of  <f, p - q>,   f_i - f_j <= C_ij for all i, j

is solved by comparing its vertices, which are the same for all p and q: at a vertex the constraints along a spanning
tree of the labels are tight. More labels are left to POT, row by row.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from knot_runner.transport.costs import ground_cost
from knot_runner.transport.loss import SOLVERS
from knot_runner.transport.solver import Solver
from knot_runner.transport.tree import tree_edges
from knot_runner.util.errors import UserError

#: Labels whose dual vertices are enumerated: six in general position have 252, ten have 48,620.
MOST_ENUMERATED = 6
#: Rows that are compared with all vertices at once.
ROWS_AT_ONCE = 16384
#: Of the largest distance: how far a constraint may be exceeded, by rounding.
FEASIBLE = 1e-9


def exact_transport(p: Tensor, q: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """W1 [N] of the rows of p and q [N, n], and a potential of each [N, n]: a subgradient by p, up to a constant.

    In float64, in units of ``points`` [n, d]; rows are scaled to sum to 1.
    """
    p, q = (rows.double() / rows.double().sum(-1, keepdim=True) for rows in (p, q))
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
    distances = cost.numpy()
    n = len(distances)
    edges = np.array(list(itertools.combinations(range(n), 2)))
    incidence = np.zeros((len(edges), n))
    incidence[np.arange(len(edges)), edges[:, 0]] = 1
    incidence[np.arange(len(edges)), edges[:, 1]] = -1
    chosen = np.array(list(itertools.combinations(range(len(edges)), n - 1)))
    systems = incidence[chosen][:, :, 1:]  # f_0 = 0
    spanning = np.abs(np.linalg.det(systems)) > 0.5  # determinants are 0 or +-1; not 0 where the edges span a tree
    chosen, systems = chosen[spanning], systems[spanning]
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n - 1)))
    lengths = distances[edges[:, 0], edges[:, 1]][chosen]
    tight = signs[None] * lengths[:, None]  # [trees, signs, n - 1]
    potentials = np.einsum("tij,tsj->tsi", np.linalg.inv(systems), tight).reshape(-1, n - 1)
    potentials = np.concatenate([np.zeros((len(potentials), 1)), potentials], axis=1)
    excess = potentials[:, :, None] - potentials[:, None, :] - distances
    feasible = potentials[excess.max((1, 2)) <= FEASIBLE * distances.max()]
    _, first = np.unique(np.round(feasible, 9), axis=0, return_index=True)
    return torch.from_numpy(feasible[first])
