"""What is drawn for a matrix of distances, from its seed and the number of the pair alone."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings.methods.transport import FedwadSettings, OtddSettings
from knot_runner.transport.otdd.statistics import augmented_dimension

#: tells the streams of one seed apart
START_KEY, TIMES_KEY = 0, 1


def first_points(features: int, options: OtddSettings, seed: int) -> np.ndarray:
    """Augmented points [S, d + L] of the first interpolating measure, N(0, start_scale^2 I); the same for all pairs."""
    shape = options.fedwad.support, augmented_dimension(features, options.part)
    return np.random.default_rng((seed, START_KEY)).normal(0.0, options.fedwad.start_scale, shape)


def draw_times(i: int, j: int, options: FedwadSettings, seed: int) -> np.ndarray:
    """t of every interpolation [K, 3] for sets i and j: at the first client, at the second, at the server.

    Row k is the same whatever K is.
    """
    if options.t == "random":
        return np.random.default_rng((seed, TIMES_KEY, i, j)).uniform(size=(options.iterations, 3))
    return np.full((options.iterations, 3), float(options.t))
