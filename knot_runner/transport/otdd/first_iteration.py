"""Iteration 1 of FedWaD, random draws, and the inputs of workers.

Each client computes iteration 1 only once, for all pairs. The measures of FedWaD are centered, and their means are
computed separately. Consider two measures with the means ``a`` and ``b``, in which all points have equal masses. The
measure interpolated between them at t has the mean ``(1 - t) a + t b`` for any transport plan. The optimal plan does
not depend on the means, and ``W2^2 = |a - b|^2 + W2^2 of the two centered measures``.

A large common offset of the features therefore costs no precision in float32. The means are stored in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from knot_runner.config.settings.methods.transport import FedwadSettings, OtddSettings
from knot_runner.transport.otdd.small_support import best_plan
from knot_runner.transport.otdd.statistics import ClassTable, LabeledSamples

#: Keys of the two random streams that are derived from a seed: one for the first points, one for random t.
START_KEY = 0
TIMES_KEY = 1


def first_points(features: int, options: OtddSettings, seed: int) -> ndarray:
    """Draw the S points of the first interpolating measure from N(0, start_scale^2 I). Return them, shape [S, d + L].

    FedWaD starts from these points for every pair of clients. A point has d features and a label vector of length L.
    """
    # d + L: 3d of diagonals, 2d + d^2 of full covariances
    per_label = features**2 if options.part == "full" else features
    shape = options.fedwad.support, 2 * features + per_label
    return np.random.default_rng((seed, START_KEY)).normal(0.0, options.fedwad.start_scale, shape)


def draw_times(i: int, j: int, options: FedwadSettings, seed: int) -> ndarray:
    """Return the values of t for all interpolations between the sets of clients i and j, shape [K, 3].

    t is the position of an interpolation on its geodesic, from 0 to 1. Row k has the three values of iteration k: for
    client i, client j and the server. Row k does not depend on the number K of iterations.
    """
    if options.t == "random":
        return np.random.default_rng((seed, TIMES_KEY, i, j)).uniform(size=(options.iterations, 3))
    return np.full((options.iterations, 3), float(options.t))


def centered(points: ndarray) -> ndarray:
    """Return ``points`` [n, D] minus their mean."""
    return points - points.mean(0)


def about_mean(table: ClassTable) -> ClassTable:
    """Return a copy of ``table`` with centered class vectors: their mean, weighted by ``mass``, is subtracted."""
    return replace(table, vectors=table.vectors - table.mass @ table.vectors)


def mean_products(start: ndarray, means: ndarray, tables: Sequence[ClassTable]) -> ndarray:
    """Return the matrix of all inner products among 1 + N mean vectors.

    Vector 0 is the mean of the first points, and vector c + 1 is the mean of set c. A mean vector has two parts: the
    mean features and the mean label vector. Before the multiplication, the average of the N sets' mean vectors is
    subtracted from all mean vectors.

    Args:
        start: The first points [S, d + L] (:func:`first_points`).
        means: The mean features [N, d] of the sets.
        tables: The class table of each set. Class means are relative to the mean features of the set.
    """
    labels = np.stack([table.mass @ table.vectors for table in tables])
    labels[:, : means.shape[1]] += means
    sets = np.concatenate([means, labels], 1)
    rows = np.concatenate([start.mean(0, keepdims=True), sets]) - sets.mean(0)
    return rows @ rows.T


def mean_terms(pairs: ndarray, times: ndarray, products: ndarray) -> ndarray:
    """For each of m pairs, return the squared distances from the mean of xi to the means of the two sets, shape [m, 2].

    xi is the server's measure after K iterations. The distances are in float64.

    Args:
        pairs: The indices of the two sets of each pair, shape [m, 2].
        times: The values of t of each pair in K iterations, shape [m, K, 3] (:func:`draw_times`).
        products: The result of :func:`mean_products`, shape [1 + N, 1 + N].
    """
    # The mean of the last measure is a weighted average of three means: of the first points, and of the two sets.
    # Only these three weights [m, 3] are computed.
    weights = np.tile([1.0, 0.0, 0.0], (len(pairs), 1))
    for at in times.swapaxes(0, 1)[..., None]:
        near = (1 - at[:, :2]) * weights[:, None] + at[:, :2] * np.eye(3)[1:]  # of the clients' measures
        weights = (1 - at[:, 2]) * near[:, 1] + at[:, 2] * near[:, 0]
    places = np.concatenate([np.zeros((len(pairs), 1), int), 1 + pairs], 1)
    pair_products = products[places[:, :, None], places[:, None, :]]
    apart = weights[:, None] - np.eye(3)[1:]
    return np.maximum(np.einsum("msa,mab,msb->ms", apart, pair_products, apart), 0.0)


@dataclass(frozen=True, eq=False)
class FirstIteration:
    """One client's results of FedWaD's iteration 1. The results do not depend on t or on any other client.

    Attributes:
        spread: Mean squared distance of the client's points, including label vectors, from their mean.
        means: One row per point of the first measure, shape [S, d + k]: the mean features and the class fractions of
            the samples that receive mass from this point.
        heights: Dual potentials [S] of the transport plan (small_support.py).
    """

    spread: float
    means: ndarray
    heights: ndarray


def augmented_rows(samples: LabeledSamples, dtype: np.dtype, center: ndarray) -> ndarray:
    """Return one row per sample, shape [n, d + k]: features minus ``center`` [d], and the class as a one-hot code.

    The subtraction is in float64, before the cast to ``dtype``.
    """
    labels, of = np.unique(samples.labels, return_inverse=True)
    features = samples.points.shape[1]
    rows = np.zeros((samples.size, features + len(labels)), dtype)
    rows[:, :features] = samples.points.astype(np.float64) - center
    rows[np.arange(samples.size), features + of] = 1
    return rows


def first_iteration(rows: ndarray, table: ClassTable, options: OtddSettings, seed: int) -> FirstIteration:
    """Return one client's results of FedWaD's iteration 1.

    ``rows`` [n, d + k] are the client's samples with centered features (:func:`augmented_rows`). ``table`` has centered
    class vectors (:func:`about_mean`).
    """
    features = rows.shape[1] - len(table.labels)
    start = centered(first_points(features, options, seed))
    weights = np.concatenate([start[:, :features], start[:, features:] @ table.vectors.T], 1).astype(rows.dtype)
    scores = weights @ rows.T
    plan = np.empty_like(scores)
    heights = best_plan(scores, None, plan)
    norms = np.einsum("ij,ij->", rows[:, :features], rows[:, :features], dtype=np.float64) / len(rows)
    spread = norms + table.mass @ np.einsum("ij,ij->i", table.vectors, table.vectors)
    return FirstIteration(float(spread), plan @ rows * (len(start) / len(rows)), heights)


class LabelProducts:
    """Inner products of all label vectors (statistics.py), stored instead of the vectors.

    ``gram`` [R, R] has one row for each of the S first points, then one row for each class of every set, then a row of
    zeros. Set c has ``counts[c]`` classes, and their rows begin at row ``begins[c]``.

    Args:
        tables: The class table of each set.
        start: The label vectors [S, L] of the first points.
    """

    def __init__(self, tables: Sequence[ClassTable], start: ndarray) -> None:
        stacked = np.concatenate([start, *(table.vectors for table in tables)])
        self.counts = np.array([len(table.labels) for table in tables])
        self.begins = len(start) + np.cumsum(self.counts) - self.counts
        self.gram = np.zeros((len(stacked) + 1, len(stacked) + 1))
        self.gram[:-1, :-1] = stacked @ stacked.T

    def of_pairs(self, pairs: ndarray) -> ndarray:
        """For each of m pairs of sets, return the inner products of the pair's label vectors, shape [m, B, B].

        B = S + 2 k vectors belong to a pair: first the vectors of the S first points, then k class vectors of each set.
        k is the largest number of classes in a set. If a set has fewer classes, the remaining entries are 0.
        """
        counts = self.counts[pairs]
        places = np.arange(counts.max())
        slots = np.where(places < counts[..., None], self.begins[pairs][..., None] + places, len(self.gram) - 1)
        first = np.tile(np.arange(self.begins[0]), (len(pairs), 1))
        basis = np.concatenate([first, slots.reshape(len(pairs), -1)], 1)
        return self.gram[basis[:, :, None], basis[:, None, :]]


#: Maximum number of sets in a block (:func:`cut_tiles`).
SETS_A_BLOCK = 10
#: Limits in bytes of the interpolating measures of a tile, and of the scores of one client in a tile.
MEASURES = 2**26
SCORES_AT_ONCE = 2**27


@dataclass(frozen=True, eq=False)
class Tile:
    """The input of one worker task, which computes the distances of m pairs of sets. Tiles hold no samples.

    Attributes:
        pairs: The indices of the two sets of each pair, shape [m, 2].
        times: For each pair and iteration, the positions t of three interpolations, shape [m, K, 3]
            (:func:`draw_times`).
        start: The centered features [S, d] of the points from :func:`first_points`.
        openings: A dict from the index of a set to the set's results of iteration 1.
        gram: Inner products of each pair's label vectors, shape [m, B, B] (:meth:`LabelProducts.of_pairs`).
        means: The result of :func:`mean_terms`, shape [m, 2]: squared distances between mean vectors.
    """

    pairs: ndarray
    times: ndarray
    start: ndarray
    openings: dict[int, FirstIteration]
    gram: ndarray
    means: ndarray


def cut_tiles(sets: int, support: int, features: int, largest: int) -> list[list[tuple[int, int]]]:
    """Divide all pairs (i, j), i < j, of set indices into tiles, and return the tiles.

    The sets are divided into blocks. A tile holds all pairs between two blocks, or all pairs within one block. The
    tiles do not depend on the number of workers, so that distances are bitwise reproducible. ``sets``: number of sets;
    ``largest``: number of samples of the largest set.
    """
    # The last digits of a matrix product depend on the other rows in the stack, and thus on the tiles.
    room = math.isqrt(max(1, MEASURES // (32 * support * features)))
    side = max(1, min(SETS_A_BLOCK, sets // 5, room, SCORES_AT_ONCE // (16 * support * largest)))
    blocks = [range(begin, min(begin + side, sets)) for begin in range(0, sets, side)]
    tiles = []
    for first, second in itertools.combinations_with_replacement(blocks, 2):
        pairs = [(i, j) for i in first for j in second if i < j]
        if pairs:
            tiles.append(pairs)
    return tiles
