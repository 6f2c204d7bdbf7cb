"""FedWaD of the pairs of a tile by inner products alone, where there are few samples per support point.

The points of every measure are weighted means of the first points and of both sets' samples. FedWaD compares only inner
products, of points with samples and of points with each other, which are weighted means of the products of samples with
samples, computed once per pair. An iteration is then a few products of sparse plans (of S + n entries) with [n, n], in
place of products of [S, d] with [d, n]; no point is ever computed.

As in tile_distances.py, measures are about their own means, and the means are added at the end (first_iteration.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from knot_runner.transport.otdd.first_iteration import Tile
from knot_runner.transport.otdd.plan_changes import SparsePlan, changed_plan

#: From so many points on, plans are multiplied as sparse matrices: of S + n entries at most, S n as dense ones.
SPARSE_FROM = 32
#: Samples of a set, at most: of a tile's 20 sets, products of samples with each other take 230 MB then.
MOST_SAMPLES = 1200


@dataclass(frozen=True, eq=False)
class SampleProducts:
    """Of one pair, by side: ``own`` [n, n], the products of its samples with each other; ``across`` [n, n'], with those
    of the other side; ``start`` [S, n], of the first points with them. Labels are included."""

    own: list[np.ndarray]
    across: list[np.ndarray]
    start: list[np.ndarray]


def takes_products(support: int, iterations: int, samples: int) -> bool:
    """Whether products of all samples take less work than those of all measures, about, and fit in memory."""
    return support >= SPARSE_FROM and samples <= min(support * iterations, MOST_SAMPLES)


def product_distances(tile: Tile, rows: list[np.ndarray]) -> np.ndarray:
    """``(W + W)^2`` after K iterations of each pair [m], float64. ``rows`` of every set: first_iteration.py."""
    sets = np.unique(tile.pairs)
    own = {one: _products(tile, rows, one, one) for one in sets}
    start = {one: _start_products(tile, rows, one) for one in sets}
    support = len(tile.start)
    begun = tile.start @ tile.start.T + tile.labels.gram[:support, :support]
    values = np.empty(len(tile.pairs))
    for at, (first, second) in enumerate(tile.pairs):
        across = _products(tile, rows, first, second)
        products = SampleProducts(
            [own[first], own[second]], [across, np.ascontiguousarray(across.T)], [start[first], start[second]]
        )
        values[at] = _distance(tile, at, products, begun)
    return values


def _products(tile: Tile, rows: list[np.ndarray], one: int, other: int) -> np.ndarray:
    """Inner products [n, n'] of the samples of two sets, labels included."""
    d = tile.start.shape[1]
    between = tile.labels.gram[_classes(tile, one), _classes(tile, other)].astype(rows[one].dtype)
    products = rows[one][:, :d] @ rows[other][:, :d].T
    products += (rows[one][:, d:] @ between) @ rows[other][:, d:].T
    return products


def _classes(tile: Tile, one: int) -> slice:
    """Where the classes of a set are in the products of labels."""
    return slice(tile.labels.begins[one], tile.labels.begins[one] + tile.labels.counts[one])


def _start_products(tile: Tile, rows: list[np.ndarray], one: int) -> np.ndarray:
    """Inner products [S, n] of the first points with the samples of a set, labels included."""
    labels = tile.labels.gram[: len(tile.start), _classes(tile, one)]
    return np.concatenate([tile.start, labels], 1).astype(rows[one].dtype) @ rows[one].T


def _distance(tile: Tile, at: int, products: SampleProducts, begun: np.ndarray) -> float:
    """Of the tile's pair ``at``; ``begun`` [S, S]: products of the first points with each other."""
    openings = [tile.openings[one] for one in tile.pairs[at]]
    plans = [opening.plan for opening in openings]
    changed = [np.arange(len(begun))] * 2
    course = _begun(products, begun)
    for iteration, times in enumerate(tile.times[at].tolist()):
        if iteration:
            plans, changed = zip(*map(changed_plan, course.middle, plans), strict=True)
        _send(course, products, plans, changed)
        _meet(course, times)
    norms = float(np.trace(course.points[0, 0], dtype=np.float64)) / len(begun)
    total = 0.0
    for side, (opening, scores) in enumerate(zip(openings, course.middle, strict=True)):
        plan, _ = changed_plan(scores, plans[side])
        gain = float(plan.weights(scores.shape[1], np.dtype(np.float64)).multiply(scores).sum()) / len(begun)
        total += (max(norms + opening.spread - 2 * gain, 0.0) + tile.means[at, side]) ** 0.5
    return total**2


@dataclass(frozen=True, eq=False)
class _Course:
    """The current state of a pair: three times S points, the middle measure's and, for each side, the means of the
    samples that their mass goes to. ``samples`` [3, S, n] of each side: inner products of them with its samples;
    ``points`` [3, 3, S, S]: with each other. Both are overwritten."""

    samples: list[np.ndarray]
    points: np.ndarray

    @property
    def middle(self) -> list[np.ndarray]:
        """Scores [S, n] of each side."""
        return [products[0] for products in self.samples]


def _begun(products: SampleProducts, begun: np.ndarray) -> _Course:
    samples = [np.stack([start] * 3) for start in products.start]
    points = np.zeros((3, 3, *begun.shape), samples[0].dtype)
    points[0, 0] = begun
    return _Course(samples, points)


def _send(
    course: _Course, products: SampleProducts, plans: Sequence[SparsePlan], changed: Sequence[np.ndarray]
) -> None:
    """Find where each side sends the mass of the middle; only ``changed`` rows of its plan give other means."""
    samples, points = course.samples, course.points
    weights = [plan.weights(own.shape[1], points.dtype) for plan, own in zip(plans, course.middle, strict=True)]
    for side, rows in enumerate(changed):
        if len(rows):
            part = weights[side][rows]
            samples[side][1 + side, rows] = part @ products.own[side]
            samples[1 - side][1 + side, rows] = part @ products.across[side]
    for side in (0, 1):
        own = 1 + side
        points[own, 0] = weights[side] @ samples[side][0].T
        points[0, own] = points[own, 0].T
        if len(changed[side]):
            points[own, own] = weights[side] @ samples[side][own].T
    if len(changed[0]) or len(changed[1]):
        points[1, 2] = weights[0] @ samples[0][2].T
        points[2, 1] = points[1, 2].T


def _meet(course: _Course, times: list[float]) -> None:
    """Both sides move the middle towards their means, and the server the second result towards the first."""
    first, second, t = times
    dtype = course.points.dtype
    near = np.array([[1 - first, first, 0], [1 - second, 0, second]], dtype)  # of the three times S points
    size = len(course.points[0, 0])
    points = (np.kron(near, near) @ course.points.reshape(9, -1)).reshape(2, 2, size, size)
    # by distances, most points' partner is the nearest one, and found at once
    partner = linear_sum_assignment(points[0, 0].diagonal() - 2 * points[1, 0])[1]
    across = points[1, 0][:, partner]
    middle = (1 - t) ** 2 * points[1, 1] + t**2 * points[0, 0][np.ix_(partner, partner)]
    course.points[0, 0] = middle + (1 - t) * t * (across + across.T)
    for samples in course.samples:
        _mix(samples, partner, times)


def _mix(samples: np.ndarray, partner: np.ndarray, times: list[float]) -> None:
    """Replace the middle's products, the first of ``samples`` [3, S, n], by those of the next middle, in place: new
    arrays of this size would take longer than the sums."""
    first, second, t = times
    middle, to_first, to_second = samples
    term = middle[partner]
    term *= t * (1 - first)
    middle *= (1 - t) * (1 - second)
    middle += term
    np.take(to_first, partner, 0, out=term, mode="clip")
    term *= t * first
    middle += term
    np.multiply(to_second, (1 - t) * second, out=term)
    middle += term
