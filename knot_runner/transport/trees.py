"""Trees along which mass moves in unregularized optimal transport (eps = 0), and the closed-form cost on a tree.

If the cost between labels is their distance in a tree, all mass moves along this tree. Examples are labels on a line,
and labels at the leaves of a tree. The flow over an edge is the difference between the masses of p and q below the
edge, so (Le et al. 2019, eq. 3)::

    W1(p, q) = sum over edges e of  w_e |p(below e) - q(below e)|,    dW1 / dp_i = sum over e above i of  w_e sign(...)

Labels with an ultrametric cost, such as superclasses and one-hot labels, are the leaves of a tree. Let 0 = d_0 < d_1 <
d_2 < ... be the distances between labels. The subtrees of level l are the groups of labels that are at most d_l apart.
The edge above each subtree of level l has the weight ``(d_{l+1} - d_l) / 2``.

For other costs between a few labels, mass moves along a spanning tree of the labels. This tree is given by the optimal
vertex of the dual program::

    W1(p, q) = max over f of  <f, p - q>,   f_i - f_j <= C_ij for all i, j

The vertices are the same for all p and q. At each vertex, the constraints along a spanning tree are tight (equalities).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from knot_runner.transport.costs import Solution, Solver, host_cost, unit_mass
from knot_runner.util.errors import UserError

#: Distances with a smaller relative difference belong to the same level.
SAME_LEVEL = 1e-9


def tree(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> Solution:
    """Return W1 [N] between p and q, and the potentials [N, n] of p, for labels at the leaves of a tree.

    p and q have shape [N, n].

    Raises:
        UserError: The points are not leaves of a tree.
    """
    return _along_edges(p, q, *label_tree(points))


def line(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> Solution:
    """Return W1 [N] between p and q, and the potentials [N, n] of p, for labels on a line.

    p and q have shape [N, n].

    Raises:
        UserError: The points have more than one coordinate.
    """
    if points.shape[1] != 1:
        raise UserError(
            f"the solver 'line' requires labels with one coordinate each, but these have {points.shape[1]}. Use "
            "method.loss.solver=newton",
            "task.labels",
        )
    x, order = points[:, 0].double().sort()
    edges = torch.arange(len(x) - 1, device=x.device)
    return _along_edges(p, q, x.diff(), (order.argsort() <= edges[:, None]).double())


def _along_edges(p: Tensor, q: Tensor, weights: Tensor, below: Tensor) -> Solution:
    """Return the transport costs between ``p`` and ``q`` on a tree, and the dual potentials.

    ``below`` [E, n] is 1 for the labels below each edge, and 0 for the others.
    """
    excess = (unit_mass(p) - unit_mass(q)) @ below.T
    return excess.abs() @ weights, (excess.sign() * weights) @ below


@lru_cache(maxsize=16)
def label_tree(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of :func:`tree_edges` for labels at ``points``, cached for each tensor object."""
    return tree_edges(host_cost(points).to(points.device))


def tree_edges(cost: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges of the tree whose n leaves (labels) have the ultrametric distances ``cost`` [n, n].

    Returns:
        The weights of E edges, shape [E], and a matrix of shape [E, n]. Entry [e, i] of the matrix is 1 if label i is
        below edge e, otherwise 0.

    Raises:
        UserError: The distances are not ultrametric.
    """
    levels = [0.0]
    slack = SAME_LEVEL * float(cost.max())
    for distance in cost.unique().tolist():
        if distance > levels[-1] + slack:
            levels.append(distance)
    weights = []
    below = []
    for near, far in itertools.pairwise(levels):
        together = (cost <= near + slack).double()
        if bool(((together @ together > 0) != (together > 0)).any()):
            text = "'tree' requires labels at the leaves of a tree, such as one-hot labels or labels with superclasses"
            raise UserError(f"{text}. For other labels, use method.loss.solver=newton", "method.loss.solver")
        groups = together.unique(dim=0)
        below.append(groups)
        weights.append(torch.full((len(groups),), (far - near) / 2, dtype=cost.dtype, device=cost.device))
    return torch.cat(weights), torch.cat(below)


#: Maximum number of labels whose dual vertices are enumerated. Six labels in general position have 252 vertices, ten
#: have 48,620.
MOST_ENUMERATED = 6
#: Tolerance of a constraint, as a fraction of the largest distance. Rounding errors are smaller.
FEASIBLE = 1e-9


def tight_trees(distances: ndarray) -> tuple[ndarray, ndarray]:
    """Return the V vertices [V, n] of a polytope, and the edges [V, n - 1, 2] of one spanning tree per vertex.

    The polytope is the set of dual potentials, ``{f: f_i - f_j <= distances_ij, f_0 = 0}``. A spanning tree connects
    the labels. At each vertex, the constraints along the edges of the vertex's tree are equalities. An edge consists of
    two labels i < j. ``distances`` [n, n] must have at most ``MOST_ENUMERATED`` labels.
    """
    n = len(distances)
    edges = np.stack(np.triu_indices(n, 1), axis=1)
    units = np.eye(n)
    incidence = units[edges[:, 0]] - units[edges[:, 1]]
    chosen = np.array(list(itertools.combinations(range(len(edges)), n - 1)))
    systems = incidence[chosen][:, :, 1:]  # f_0 = 0
    spanning = np.abs(np.linalg.det(systems)) > 0.5  # determinants are 0 or +-1; not 0 where the edges span a tree
    chosen = chosen[spanning]
    systems = systems[spanning]
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n - 1)))
    lengths = distances[edges[:, 0], edges[:, 1]][chosen]
    tight = signs[None] * lengths[:, None]  # [trees, signs, n - 1]
    potentials = np.einsum("tij,tsj->tsi", np.linalg.inv(systems), tight).reshape(-1, n - 1)
    potentials = np.concatenate([np.zeros((len(potentials), 1)), potentials], axis=1)
    excess = potentials[:, :, None] - potentials[:, None, :] - distances
    feasible = excess.max((1, 2)) <= FEASIBLE * distances.max()
    trees = np.repeat(edges[chosen], len(signs), axis=0)[feasible]
    _, first = np.unique(np.round(potentials[feasible], 9), axis=0, return_index=True)
    return potentials[feasible][first], trees[first]


#: Labels are on a line if their distance from the line is at most this fraction of the largest cost (rounding).
ON_A_LINE = 1e-9


@dataclass(frozen=True)
class TransportTrees:
    """T trees with E edges and V = E + 1 nodes each.

    Some nodes are labels; n is the number of labels. An edge has a lower end and an upper end. The edge divides its
    tree into two parts, one at each end.
    """

    #: [T, n] dual potential f for which the tree is tight. Mass from p to q moves along the tree with the largest <f, p
    #: - q>
    potentials: ndarray
    #: [T, E] length of each edge
    lengths: ndarray
    #: [T, E, V] 1 where the node is in the part of the edge's lower end
    below: ndarray
    #: [T, E, V] 1 at the lower end of the edge
    lower: ndarray
    #: [T, E, V] 1 at the upper end of the edge
    upper: ndarray
    #: [V, n] 1 where the label is at the node
    labels: ndarray


def transport_trees(cost: ndarray) -> TransportTrees | None:
    """Return the trees along which mass can move between n labels with the Euclidean distances ``cost`` [n, n].

    The result is None if all distances are 0. It is also None for more than ``MOST_ENUMERATED`` labels, unless the
    labels are on a line or their distances are ultrametric.
    """
    return _trees(cost.tobytes(), len(cost))


@lru_cache(maxsize=16)
def _trees(cost: bytes, n: int) -> TransportTrees | None:
    distances = np.frombuffer(cost).reshape(n, n)
    if n < 2 or not distances.max() > 0:
        return None
    return _of_a_line(distances) or _of_leaves(distances) or _of_vertices(distances)


def _of_a_line(distances: ndarray) -> TransportTrees | None:
    """Return the tree of labels on a line."""
    n = len(distances)
    positions = distances[distances[0].argmax()]
    if np.abs(np.abs(positions[:, None] - positions) - distances).max() > ON_A_LINE * distances.max():
        return None
    order = positions.argsort()
    edges = np.stack([order[:-1], order[1:]], 1)
    return _joined(np.zeros((1, n)), edges[None], np.diff(positions[order])[None], np.eye(n))


def _of_leaves(distances: ndarray) -> TransportTrees | None:
    """Return the tree whose leaves are the labels.

    The tree has a node for the lower end of each edge, and the root as the last node.
    """
    try:
        lengths, groups = (tensor.numpy() for tensor in tree_edges(torch.tensor(distances)))
    except UserError:
        return None
    count, n = groups.shape
    size = groups.sum(1)
    # edges are ordered level by level from the leaves, so the parent of a group is the next group that contains it
    holds = np.triu(groups @ groups.T == size[:, None], 1)
    parents = np.where(holds.any(1), holds.argmax(1), count)
    labels = np.zeros((count + 1, n))
    labels[(groups > 0).argmax(0), np.arange(n)] = 1
    edges = np.stack([np.arange(count), parents], 1)
    return _joined(np.zeros((1, n)), edges[None], lengths[None], labels)


def _of_vertices(distances: ndarray) -> TransportTrees | None:
    """Return the trees of labels without special structure: one for each vertex of the dual."""
    n = len(distances)
    if n > MOST_ENUMERATED:
        return None
    potentials, edges = tight_trees(distances)
    return _joined(potentials, edges, distances[edges[..., 0], edges[..., 1]], np.eye(n))


def _joined(potentials: ndarray, edges: ndarray, lengths: ndarray, labels: ndarray) -> TransportTrees:
    """Return the trees with ``edges`` [T, E, 2]: the lower and upper end of each edge."""
    nodes = np.eye(len(labels))
    lower = nodes[edges[..., 0]]
    upper = nodes[edges[..., 1]]
    # for each edge, the function on the nodes that decreases by 1 from the lower to the upper end of the edge, is
    # constant along all other edges, and is 0 at the last node
    falls = np.zeros_like(lower)
    falls[..., :-1] = np.linalg.inv((lower - upper)[..., :-1]).swapaxes(1, 2)
    below = (falls > falls.min(2, keepdims=True) + 0.5).astype(float)
    return TransportTrees(potentials, lengths, below, lower, upper, labels)
