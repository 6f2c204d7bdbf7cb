"""FedWaD for all pairs of a tile (a group of pairs of sets) at once, with batched matrix products.

A pair's interpolating measure is stored as features [S, d] and coefficients [S, B]. The coefficients express the label
part of each point as a combination of B = S + 2 k vectors. These are the label parts of the S first points, and up to k
class vectors of each of the two sets. k is the largest number of classes in a set.

Every step of FedWaD computes weighted means of points. Only the inner products of the label vectors are therefore
needed, not the vectors themselves.

The mean of each measure is subtracted from its points, and the mean of each set from its samples and class vectors. The
contribution of the means is computed separately and added at the end (first_iteration.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from knot_runner.transport.otdd.first_iteration import Tile
from knot_runner.transport.otdd.small_support import best_plan

#: Minimum number S of points in a measure for which a plan between S points and n samples is multiplied as a sparse
#: matrix, with at most S + n entries.
SPARSE_FROM = 32


@dataclass(frozen=True, eq=False)
class TileProblem:
    """Data for all FedWaD iterations on one tile with m pairs of data sets.

    The interpolating measures are not stored here. This module's functions pass them as arrays [..., S, d + B]. Each of
    a measure's S points has d features and one coefficient for each of the pair's B label vectors.

    Attributes:
        tile: The pairs and their data.
        rows: The samples of each data set (:func:`augmented_rows`).
        features: The number d of features.
        gram: Inner products [m, B, B] of the label vectors of each pair.
        heights: For each pair and each of its two data sets, the dual potentials of the latest plan, shape [m, 2, S]
            (small_support.py).
    """

    tile: Tile
    rows: list[ndarray]
    features: int
    gram: ndarray
    heights: ndarray

    def columns(self, side: int, client: int) -> slice:
        """Return the columns of a measure [S, d + B] that hold the coefficients of ``client``'s class vectors.

        ``side``: 0 if the client is the first set of the pair, 1 if it is the second set.
        """
        classes = (self.gram.shape[1] - self.heights.shape[2]) // 2
        begin = self.features + self.heights.shape[2] + side * classes
        return slice(begin, begin + self.rows[client].shape[1] - self.features)

    def parts(self, client: int) -> list[tuple[int, int]]:
        """Return (index of the pair, side) for each pair that contains ``client``. For side, see :meth:`columns`."""
        return [(int(at), int(side)) for at, side in np.argwhere(self.tile.pairs == client)]


def tile_distances(tile: Tile, rows: list[ndarray]) -> ndarray:
    """Return the squared distances [m] of the m pairs in ``tile``, in float64.

    The squared distance between sets a and b is ``(W(a, M) + W(b, M))^2``. W is the Wasserstein-2 distance, and M is
    the server's measure after the last iteration.
    """
    heights = np.array([tile.openings[client].heights for client in tile.pairs.flat]).reshape(*tile.pairs.shape, -1)
    problem = TileProblem(tile, rows, tile.start.shape[1], tile.gram, heights)
    points = _meet(problem, _first(problem), 0)
    for iteration in range(1, tile.times.shape[1]):
        near = np.stack([points, points])
        for client in np.unique(tile.pairs):
            _approach(problem, client, points, near, iteration)
        points = _meet(problem, near, iteration)
    return _values(problem, points)


def _first(problem: TileProblem) -> ndarray:
    """Return the clients' measures of iteration 1, shape [2, m, S, d + B], from each client's shared results."""
    support = problem.heights.shape[2]
    features = problem.features
    tile = problem.tile
    start = np.zeros((support, features + problem.gram.shape[1]), problem.gram.dtype)
    start[:, :features] = tile.start
    start[:, features : features + support] = np.eye(support)
    near = np.tile(start, (2, len(tile.pairs), 1, 1))
    for (at, side), client in np.ndenumerate(tile.pairs):
        _move(problem, near[side, at], tile.openings[client].means, tile.times[at, 0, side], side, client)
    return near


def _move(problem: TileProblem, points: ndarray, means: ndarray, t: float, side: int, client: int) -> None:
    """Move ``points`` [S, d + B] the fraction t of the way to ``means`` [S, d + k], in place."""
    points *= 1 - t
    points[:, : problem.features] += t * means[:, : problem.features]
    points[:, problem.columns(side, client)] += t * means[:, problem.features :]


def _plans(problem: TileProblem, client: int, points: ndarray) -> tuple[ndarray, ndarray]:
    """Return the optimal plans of ``client``'s pairs, and the scores that they maximize, each [pairs, S, n].

    The scores are inner products of the pairs' points with the client's samples, labels included. The columns of a plan
    sum to 1. The search starts from the last heights.
    """
    features = problem.features
    rows = problem.rows[client]
    parts = problem.parts(client)
    weights = np.empty((len(parts), points.shape[1], rows.shape[1]), rows.dtype)
    for weight, (at, side) in zip(weights, parts, strict=True):
        weight[:, :features] = points[at, :, :features]
        columns = problem.columns(side, client)
        products = problem.gram[at][:, columns.start - features : columns.stop - features]
        weight[:, features:] = points[at, :, features:] @ products
    # One product covers all points that the client compares with its samples. The labels add k columns to it.
    scores = (weights.reshape(-1, rows.shape[1]) @ rows.T).reshape(*weights.shape[:2], len(rows))
    plans = np.empty_like(scores)
    for index, (at, side) in enumerate(parts):
        problem.heights[at, side] = best_plan(scores[index], problem.heights[at, side], plans[index])
    return plans, scores


def _approach(problem: TileProblem, client: int, points: ndarray, near: ndarray, iteration: int) -> None:
    """Move the points of ``client``'s pairs towards the client's samples, in place in ``near`` [2, m, S, d + B].

    ``points``: the server's measures. Initially, ``near[0]`` and ``near[1]`` both equal ``points``.
    """
    rows = problem.rows[client]
    plans, _ = _plans(problem, client, points)
    flat = plans.reshape(-1, len(rows))
    if plans.shape[1] >= SPARSE_FROM:
        flat = csr_array(flat)
    means = (flat @ rows * (plans.shape[1] / len(rows))).reshape(*plans.shape[:2], -1)
    for (at, side), mean in zip(problem.parts(client), means, strict=True):
        _move(problem, near[side, at], mean, problem.tile.times[at, iteration, side], side, client)


def _meet(problem: TileProblem, near: ndarray, iteration: int) -> ndarray:
    """Return the measures that the server interpolates between the clients' measures, shape [m, S, d + B].

    Each point of the second client's measure moves towards the assigned point of the first client's measure. Both
    measures have S points of equal mass, so the optimal plan is a permutation.
    """
    features = problem.features
    times = problem.tile.times[:, iteration, 2].astype(near.dtype)
    first, second = near
    labels = second[..., features:] @ problem.gram @ first[..., features:].swapaxes(1, 2)
    scores = second[..., :features] @ first[..., :features].swapaxes(1, 2) + labels
    partners = np.array([linear_sum_assignment(score, maximize=True)[1] for score in scores])
    partner = first[np.arange(len(first))[:, None], partners]
    return second + times[:, None, None] * (partner - second)


def _values(problem: TileProblem, points: ndarray) -> ndarray:
    """Return the squared sum of the two distances for each pair [m]."""
    features = points[..., : problem.features]
    labels = points[..., problem.features :]
    norms = np.einsum("msd,msd->m", features, features, dtype=np.float64)
    norms += np.einsum("msb,msb->m", labels @ problem.gram, labels, dtype=np.float64)
    sums = np.zeros(len(points))
    for client in np.unique(problem.tile.pairs):
        plans, scores = _plans(problem, client, points)
        for plan, score, (at, side) in zip(plans, scores, problem.parts(client), strict=True):
            gain = np.vdot(plan, score) / scores.shape[2]
            about_means = norms[at] / points.shape[1] + problem.tile.openings[client].spread - 2 * gain
            sums[at] += (max(about_means, 0.0) + problem.tile.means[at, side]) ** 0.5
    return sums**2
