"""The analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8) for the messages of a FedWaD client.

Neighboring data sets differ in one sample, which is replaced by any other point in the ball of radius ``clip``. The
number of a client's samples is public. Messages have these sensitivities (largest change in Euclidean norm):

* points of an approximate interpolating measure, z + t (mean - z) for S known points z: **2 clip t sqrt(S)**. Each mean
  lies in the ball, so no point moves by more than 2 clip t. There is no better bound: if several plans are nearly
  optimal, a single sample can change which plan is optimal, and so change all means. The bound holds for *any* two data
  sets in the ball, so this release protects a client's whole data set, and needs much noise.
* a distance W_2(the client's samples, a known measure): **2 clip sqrt(m)**, where m is the largest mass of a sample,
  usually 1/n. This is the maximum W_2 between neighboring data sets.

The masses of an approximate measure are those of the first measure, so they do not depend on a client's data. The
masses of an exact measure and its number of points depend on the data, and noise cannot protect them. Privacy is
therefore available for mode=approximate only.

Each single release is (epsilon, delta)-private. Noise in floating point from a generator whose seed the server knows
gives no real protection: this simulates the cost of privacy on one machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy import ndarray
from numpy.random import Generator
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from knot_runner.config.settings.methods.transport import PrivacySettings


def delta_of(multiplier: float, epsilon: float) -> float:
    """Return the smallest delta for which noise of ``multiplier`` times the sensitivity is (epsilon, delta)-private.

    Theorem 8: Phi(1 / (2 m) - epsilon m) - e^epsilon Phi(-1 / (2 m) - epsilon m), where m is ``multiplier`` and Phi is
    the normal distribution function.
    """
    half = 1 / (2 * multiplier)
    shift = epsilon * multiplier
    return float(ndtr(half - shift) - np.exp(epsilon + log_ndtr(-half - shift)))


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest standard deviation of Gaussian noise that is (epsilon, delta)-private at sensitivity 1.

    The relative error is 1e-12. As the noise increases, delta decreases. The classical formula sqrt(2 log(1.25 /
    delta)) / epsilon gives a larger value, and is valid only for epsilon below 1.

    >>> round(noise_multiplier(1.0, 1e-5), 4)
    3.7306
    """
    low, high = -50.0, 50.0  # bounds of the logarithm of the multiplier
    log_multiplier = brentq(lambda log: delta_of(math.exp(log), epsilon) - delta, low, high, xtol=1e-12)
    return math.exp(log_multiplier)


def clip_to_ball(points: ndarray, radius: float) -> ndarray:
    """Return ``points`` [n, d], where each point with a norm above ``radius`` is scaled to the norm ``radius``."""
    norms = np.linalg.norm(points, axis=1, keepdims=True)
    return points * np.minimum(1.0, radius / np.maximum(norms, np.finfo(float).tiny))


def noisy_points(means: ndarray, t: float, privacy: PrivacySettings, rng: Generator) -> ndarray:
    """Add noise to the S points with d features of an approximate interpolating measure at ``t``."""
    sensitivity = 2 * privacy.clip * t * math.sqrt(len(means))
    return means + _noise(means.shape, sensitivity, privacy, rng)


def noisy_distance(distance: float, heaviest: float, privacy: PrivacySettings, rng: Generator) -> float:
    """Add noise to a distance that was computed from a client's own samples, and clip negative results to 0.

    ``heaviest`` is the largest mass of a sample.
    """
    sensitivity = 2 * privacy.clip * math.sqrt(heaviest)
    return max(0.0, distance + float(_noise((), sensitivity, privacy, rng)))


def _noise(shape: tuple[int, ...], sensitivity: float, privacy: PrivacySettings, rng: Generator) -> ndarray:
    return rng.standard_normal(shape) * (sensitivity * noise_multiplier(privacy.epsilon, privacy.delta))


def compose_privacy(privacy: PrivacySettings, releases: int) -> tuple[float, float]:
    """Return the total (epsilon, delta) of ``releases`` releases about one client's data, by basic composition (sums).

    In a run of K iterations, K measures (distributions) and one distance are released about each client. If the run
    also records the distances in every iteration, 2 K more are released. Tighter bounds exist, but basic composition
    suffices to show the cost of a run. A delta of 1 or more gives no guarantee.
    """
    return releases * privacy.epsilon, releases * privacy.delta
