"""The means of FedWaD's measures, computed separately from the centred measures.

With equal masses on all sides the mean of a measure between two measures is the mean in between: at t from ``a`` to
``b`` it is ``(1 - t) a + t b``, whatever the plan. The plan in turn does not depend on the means, and ``W2^2 =
|difference of the means|^2 + W2^2 of both about their means``. So all stacked products (tile_distances.py) are centred,
and a common offset of the features, however large, costs no digit in float32; the means themselves are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from knot_runner.transport.otdd.statistics import ClassTable


def centred(points: np.ndarray) -> np.ndarray:
    """``points`` [n, D] less their mean."""
    return points - points.mean(0)


def about_mean(table: ClassTable) -> ClassTable:
    """``table`` with its vectors less their mean over the samples."""
    return replace(table, vectors=table.vectors - table.mass @ table.vectors)


def mean_products(start: np.ndarray, means: np.ndarray, tables: Sequence[ClassTable]) -> np.ndarray:
    """Inner products [1 + N, 1 + N] of the augmented means of the first points and of the N sets, about one origin.

    ``start`` [S, d + L]: the first points; ``means`` [N, d]: of each set's features; ``tables``: each set's classes,
    of features less those means. The origin is the mean of the sets' means.
    """
    labels = np.stack([table.mass @ table.vectors for table in tables])
    labels[:, : means.shape[1]] += means
    sets = np.concatenate([means, labels], 1)
    origin = sets.mean(0)
    rows = np.concatenate([start.mean(0, keepdims=True), sets]) - origin
    return rows @ rows.T


def mean_terms(pairs: np.ndarray, times: np.ndarray, products: np.ndarray) -> np.ndarray:
    """Squared distances [m, 2] of the last measure's mean from those of each pair's two sets, float64.

    ``pairs`` [m, 2], ``times`` [m, K, 3] (draws.py), ``products`` [1 + N, 1 + N] of :func:`mean_products`. The mean is
    a weighted one of the first points' and the two sets'; only its three weights [m, 3] are followed.
    """
    weights = np.tile([1.0, 0.0, 0.0], (len(pairs), 1))
    for iteration in range(times.shape[1]):
        at = times[:, iteration, :, None]
        first, second = ((1 - at[:, side]) * weights + at[:, side] * np.eye(3)[1 + side] for side in (0, 1))
        weights = (1 - at[:, 2]) * second + at[:, 2] * first
    places = np.concatenate([np.zeros((len(pairs), 1), int), 1 + pairs], 1)
    own = products[places[:, :, None], places[:, None, :]]
    apart = weights[:, None] - np.eye(3)[1:]
    return np.maximum(np.einsum("msa,mab,msb->ms", apart, own, apart), 0.0)
