"""FedWaD's iteration 1, which each client computes once for all pairs. Also random draws, and inputs of workers.

The means of FedWaD's measures are computed separately from the centered measures. If all points have equal masses, a
measure interpolated at t between measures with the means ``a`` and ``b`` has the mean ``(1 - t) a + t b`` for any plan.
The plan does not depend on the means, and ``W2^2 = |difference of the means|^2 + W2^2 of the two centered measures``.
The stacked products (tile_distances.py) therefore use centered points, so that a large common offset of the features
costs no precision in float32. The means themselves are float64.
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
    """Return the S points of the first interpolating measure, drawn from N(0, start_scale^2 I), shape [S, d + L].

    All pairs start from these points. A point has d features and a label vector of length L.
    """
    # d + L: 3d of diagonals, 2d + d^2 of full covariances
    per_label = features**2 if options.part == "full" else features
    shape = options.fedwad.support, 2 * features + per_label
    return np.random.default_rng((seed, START_KEY)).normal(0.0, options.fedwad.start_scale, shape)


def draw_times(i: int, j: int, options: FedwadSettings, seed: int) -> ndarray:
    """Return t of each interpolation between the sets i and j, shape [K, 3] for K iterations.

    Each row holds the values of t at the first client, at the second client, and at the server.

    Row k does not depend on K.
    """
    if options.t == "random":
        return np.random.default_rng((seed, TIMES_KEY, i, j)).uniform(size=(options.iterations, 3))
    return np.full((options.iterations, 3), float(options.t))


def centered(points: ndarray) -> ndarray:
    """Return ``points`` [n, D] minus their mean."""
    return points - points.mean(0)


def about_mean(table: ClassTable) -> ClassTable:
    """Return ``table`` after subtracting the samples' mean class vector from every class vector."""
    return replace(table, vectors=table.vectors - table.mass @ table.vectors)


def mean_products(start: ndarray, means: ndarray, tables: Sequence[ClassTable]) -> ndarray:
    """Return inner products of the mean vectors of the first points and of N sets, shape [1 + N, 1 + N].

    A mean vector holds the mean features and the mean label vector.

    The average of the sets' means is subtracted first. ``start`` [S, d + L]: the first points (:func:`first_points`);
    ``means`` [N, d]: the mean features of each set; ``tables``: the classes of each set, with class vectors relative to
    the mean of the set.
    """
    labels = np.stack([table.mass @ table.vectors for table in tables])
    labels[:, : means.shape[1]] += means
    sets = np.concatenate([means, labels], 1)
    origin = sets.mean(0)
    rows = np.concatenate([start.mean(0, keepdims=True), sets]) - origin
    return rows @ rows.T


def mean_terms(pairs: ndarray, times: ndarray, products: ndarray) -> ndarray:
    """Return the squared distances of the mean of each pair's last measure from the two sets' means, shape [m, 2].

    ``pairs`` [m, 2]: the sets of each of m pairs; ``times`` [m, K, 3]: t in each of K iterations (:func:`draw_times`);
    ``products`` [1 + N, 1 + N]: the result of :func:`mean_products`. The result is float64. The mean of the last
    measure is a weighted average of three means: of the first points, and of the two sets. Only the three weights are
    computed, shape [m, 3].
    """
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
    """One client's results of iteration 1. These results are the same for all pairs and do not depend on t.

    Attributes:
        spread: Mean squared distance of the client's augmented points from their mean.
        means: For each of the S first points, the mean features (d values) and the class masses (k values) of the
            samples that receive mass from this point, shape [S, d + k].
        heights: Dual potentials [S] of the transport plan (small_support.py).
    """

    spread: float
    means: ndarray
    heights: ndarray


def augmented_rows(samples: LabeledSamples, dtype: np.dtype, center: ndarray) -> ndarray:
    """Return one row per sample, shape [n, d + k]: features minus ``center`` [d], and the one-hot code of the class.

    One matrix product of these rows then covers features and labels. The difference is computed in float64, before the
    cast to ``dtype``.
    """
    labels, of = np.unique(samples.labels, return_inverse=True)
    features = samples.points.shape[1]
    rows = np.zeros((samples.size, features + len(labels)), dtype)
    rows[:, :features] = samples.points.astype(np.float64) - center
    rows[np.arange(samples.size), features + of] = 1
    return rows


def first_iteration(rows: ndarray, table: ClassTable, options: OtddSettings, seed: int) -> FirstIteration:
    """Return the client's results of iteration 1.

    ``rows`` [n, d + k] and the class statistics in ``table`` are relative to the client's mean.
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
    """Inner products of all label vectors [m_y, vec(B_y)], stored instead of the vectors.

    ``gram`` [R, R] has one row for each of the S first points, then one for each class of every set, then a row of
    zeros. The ``counts[c]`` classes of set c begin at ``begins[c]``.

    Args:
        tables: The classes of each set.
        start: The label parts [S, L] of the first points.
    """

    def __init__(self, tables: Sequence[ClassTable], start: ndarray) -> None:
        stacked = np.concatenate([start, *(table.vectors for table in tables)])
        self.counts = np.array([len(table.labels) for table in tables])
        self.begins = len(start) + np.cumsum(self.counts) - self.counts
        self.gram = np.zeros((len(stacked) + 1, len(stacked) + 1))
        self.gram[:-1, :-1] = stacked @ stacked.T

    def of_pairs(self, pairs: ndarray) -> ndarray:
        """Return the products [m, B, B] of the first points and of the classes of each pair's sets.

        B = S + 2 k, where k is the largest number of classes in a set. For a set with fewer classes, the remaining
        entries are 0.
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
    """The input of a worker: m pairs of sets, and all data from which the distances of these pairs are computed.

    A tile holds ``pairs`` [m, 2], each pair's values of t for K iterations (``times`` [m, K, 3]; see
    :func:`draw_times`), the centered features [S, d] of the first points, and the statistics of the pairs' sets. The
    tile also holds the products of each pair's label parts (:meth:`LabelProducts.of_pairs`), and ``means`` [m, 2], the
    contribution of the means to the distances.
    """

    pairs: ndarray
    times: ndarray
    start: ndarray
    openings: dict[int, FirstIteration]
    gram: ndarray
    means: ndarray


def cut_tiles(sets: int, support: int, features: int, largest: int) -> list[list[tuple[int, int]]]:
    """Divide all pairs (i, j), i < j, into tiles. A tile holds the pairs of sets of two blocks, or of one block.

    If possible, the sets are divided into at least five blocks. The last digits of a matrix product depend on the other
    rows in the stack. Tiles therefore depend only on the arguments (``largest``: number of samples of the largest set),
    not on the number of workers or on which distances are already known.
    """
    room = math.isqrt(max(1, MEASURES // (32 * support * features)))
    side = max(1, min(SETS_A_BLOCK, sets // 5, room, SCORES_AT_ONCE // (16 * support * largest)))
    blocks = [range(begin, min(begin + side, sets)) for begin in range(0, sets, side)]
    tiles = []
    for first, second in itertools.combinations_with_replacement(blocks, 2):
        pairs = [(i, j) for i in first for j in second if i < j]
        if pairs:
            tiles.append(pairs)
    return tiles
