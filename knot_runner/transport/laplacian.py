"""A graph Laplacian solved without cancellation, many small ones at once."""

from __future__ import annotations

from knot_runner.transport.arrays import FloatArray, library


def eliminate(edges: FloatArray, ground: FloatArray, rhs: FloatArray) -> FloatArray:
    """Solve (Laplacian of ``edges`` + diag(``ground``)) x = ``rhs``; rhs and x are [n, columns, N].

    ``edges`` [n, n, N]: at [k, j] the weight of the edge between the labels k and j < k; other entries are not read.
    ``ground`` [n, N]: the weight of each label's edge to an outer ground.

    Taking label k out of the graph joins its neighbours by edges w_jk w_lk / W_k and hands its right-hand side on in
    the same shares (as Grassmann, Taksar and Heyman do for Markov chains). Nothing is subtracted, so every entry keeps
    its relative accuracy.
    """
    lib = library(rhs)
    n, columns, _ = rhs.shape
    # row k: the right-hand sides, the ground, then the edges to the labels below k
    first = columns + 1
    graph = lib.concatenate([rhs, ground[:, None], edges], 1)
    totals = lib.empty_like(ground)
    for k in reversed(range(n)):
        row = graph[k, : first + k]
        totals[k] = row[columns:].sum(0) + 1e-300  # a label without mass has no edge, and does not move
        graph[:k, : first + k] += (row[first:] / totals[k])[:, None] * row
    x = lib.empty_like(rhs)
    for k in range(n):
        row = graph[k]
        x[k] = (row[:columns] + (row[first : first + k, None] * x[:k]).sum(0)) / totals[k]
    return x
