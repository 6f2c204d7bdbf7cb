"""Vertices of the dual of unregularised transport between a few labels in general position.

    W1(p, q) = max over f of  <f, p - q>,   f_i - f_j <= C_ij for all i, j

The vertices are the same for all p and q: at each, the constraints along a spanning tree of the labels are tight.
"""

from __future__ import annotations

import itertools

import numpy as np

#: Labels whose dual vertices are enumerated: six in general position have 252, ten have 48,620.
MOST_ENUMERATED = 6
#: Of the largest distance: how far a constraint may be exceeded, by rounding.
FEASIBLE = 1e-9


def tight_trees(distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vertices [V, n] of {f: f_i - f_j <= distances_ij, f_0 = 0}, and a tight spanning tree of each [V, n - 1, 2].

    ``distances`` [n, n] of ``MOST_ENUMERATED`` points or fewer. Labels i, j of a tree's edges: i < j.
    """
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
    feasible = excess.max((1, 2)) <= FEASIBLE * distances.max()
    trees = np.repeat(edges[chosen], len(signs), axis=0)[feasible]
    _, first = np.unique(np.round(potentials[feasible], 9), axis=0, return_index=True)
    return potentials[feasible][first], trees[first]
