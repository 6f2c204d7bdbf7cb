"""Trees along which mass moves in unregularised optimal transport, for a ground cost.

Where the cost is the distance in a tree, as on a line and between leaves, all mass moves in that tree. For few labels
elsewhere it moves along a tree of the labels given by the dual's optimal vertex.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from knot_runner.transport.tree import tree_edges
from knot_runner.transport.vertices import MOST_ENUMERATED, tight_trees
from knot_runner.util.errors import UserError

#: Of the largest cost: how far labels may be off a line, by rounding.
ON_A_LINE = 1e-9


@dataclass(frozen=True)
class TransportTrees:
    """T trees with E edges and V = E + 1 nodes each, some of which are labels. An edge parts its tree in two."""

    #: [T, n] dual potential for which the tree is tight: of all trees take the one with the largest <f, p - q>
    potentials: np.ndarray
    #: [T, E]
    lengths: np.ndarray
    #: [T, E, V] 1 where the node is in the part of the edge's lower end
    below: np.ndarray
    #: [T, E, V] 1 at the edge's lower end, and at its upper end
    lower: np.ndarray
    upper: np.ndarray
    #: [V, n] 1 where the label is at the node
    labels: np.ndarray


def transport_trees(cost: np.ndarray) -> TransportTrees | None:
    """The trees of ``cost`` [n, n], Euclidean distances; None for more labels than are enumerated, off any tree."""
    return _trees(cost.tobytes(), len(cost))


@lru_cache(maxsize=16)
def _trees(cost: bytes, n: int) -> TransportTrees | None:
    distances = np.frombuffer(cost).reshape(n, n)
    if n < 2 or not distances.max() > 0:
        return None
    return _of_a_line(distances) or _of_leaves(distances) or _of_vertices(distances)


def _of_a_line(distances: np.ndarray) -> TransportTrees | None:
    """Labels one after another."""
    n = len(distances)
    place = distances[distances[0].argmax()]
    if np.abs(np.abs(place[:, None] - place) - distances).max() > ON_A_LINE * distances.max():
        return None
    order = place.argsort()
    edges = np.stack([order[:-1], order[1:]], 1)
    below = np.zeros((n - 1, n))
    for k in range(n - 1):
        below[k, order[: k + 1]] = 1
    return _joined(np.zeros((1, n)), edges[None], np.diff(place[order])[None], below[None], np.eye(n))


def _of_leaves(distances: np.ndarray) -> TransportTrees | None:
    """Labels at the leaves of a tree: a node for the lower end of each edge, and the root as the last."""
    try:
        lengths, groups = (tensor.numpy() for tensor in tree_edges(torch.tensor(distances)))
    except UserError:
        return None
    count, n = groups.shape
    size = groups.sum(1)
    # edges come level by level from the leaves: the next group that holds this one is its parent's
    holds = groups @ groups.T == size[:, None]
    parents = [next((j for j in range(i + 1, count) if holds[i, j]), count) for i in range(count)]
    below = np.zeros((count, count + 1))
    for i in reversed(range(count)):
        below[:, i] = below[:, parents[i]]
        below[i, i] = 1
    labels = np.zeros((count + 1, n))
    labels[(groups > 0).argmax(0), np.arange(n)] = 1
    edges = np.stack([np.arange(count), parents], 1)
    return _joined(np.zeros((1, n)), edges[None], lengths[None], below[None], labels)


def _of_vertices(distances: np.ndarray) -> TransportTrees | None:
    """Labels anywhere: one tree for each vertex of the dual."""
    n = len(distances)
    if n > MOST_ENUMERATED:
        return None
    potentials, edges = tight_trees(distances)
    below = np.zeros((*edges.shape[:2], n))
    for tree in range(len(edges)):
        for k in range(n - 1):
            below[tree, k, _part(edges[tree], k)] = 1
    return _joined(potentials, edges, distances[edges[..., 0], edges[..., 1]], below, np.eye(n))


def _part(edges: np.ndarray, without: int) -> list[int]:
    """The nodes of a tree that its edge number ``without`` parts from that edge's upper end."""
    part = {int(edges[without, 0])}
    for _ in edges:
        for k, (i, j) in enumerate(edges.tolist()):
            if k != without and (i in part or j in part):
                part |= {i, j}
    return sorted(part)


def _joined(
    potentials: np.ndarray, edges: np.ndarray, lengths: np.ndarray, below: np.ndarray, labels: np.ndarray
) -> TransportTrees:
    """``edges`` [T, E, 2]: lower and upper end of each."""
    ends = np.eye(below.shape[2])
    return TransportTrees(potentials, lengths, below, ends[edges[..., 0]], ends[edges[..., 1]], labels)
