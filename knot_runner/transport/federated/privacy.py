"""The analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8) for the messages of a FedWaD client.

Neighboring data sets differ in one sample, which is replaced by any other point in the ball of radius ``clip``. The
number of a client's samples is public. The sensitivity of a message is its largest change in Euclidean norm:

* Points of an approximate interpolating measure: **2 clip t sqrt(S)**. The points are ``z + t (mean - z)`` for S known
  points z, where the mean is that of the samples assigned to z. Each mean lies in the ball, so no point moves by more
  than ``2 clip t``. There is no better bound: if several plans are nearly optimal, a single sample can change all
  means. The bound holds for *any* two data sets in the ball. Such a message therefore protects a client's whole data
  set, and needs much noise.
* A distance W_2 between the client's samples and a measure that is already public: **2 clip sqrt(m)**, where m is the
  largest mass of a sample, usually 1/n. The sensitivity is the maximum W_2 between neighboring data sets.

The masses of an approximate measure do not depend on a client's data. The masses of an exact measure and its number of
points depend on the data, and noise cannot protect them. Privacy is therefore available for mode=approximate only.

Each single message is (epsilon, delta)-private. This module only simulates the cost of privacy on one machine. It gives
no real protection, because the noise is in floating point, and the server knows the seed of the generator.
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
    """Return the smallest delta for which Gaussian noise is (epsilon, delta)-private.

    The standard deviation of the noise is ``multiplier`` times the sensitivity. Let m be ``multiplier``, and Phi the
    distribution function of the standard normal distribution. By Theorem 8, delta is
    ``Phi(1 / (2 m) - epsilon m) - exp(epsilon) Phi(-1 / (2 m) - epsilon m)``.
    """
    half = 1 / (2 * multiplier)
    shift = epsilon * multiplier
    return float(ndtr(half - shift) - np.exp(epsilon + log_ndtr(-half - shift)))


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest standard deviation of Gaussian noise that is (epsilon, delta)-private at sensitivity 1.

    The relative error of the result is 1e-12. The classical formula ``sqrt(2 log(1.25 / delta)) / epsilon`` gives a
    larger value, and is valid only for epsilon below 1.

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
    """Return ``means`` with added noise.

    ``means`` [S, d] are the points of an approximate interpolating measure, and ``t`` is the measure's position on the
    geodesic.
    """
    sensitivity = 2 * privacy.clip * t * math.sqrt(len(means))
    return means + _noise(means.shape, sensitivity, privacy, rng)


def noisy_distance(distance: float, heaviest: float, privacy: PrivacySettings, rng: Generator) -> float:
    """Return a client's ``distance`` to a measure, with added noise. A negative result becomes 0.

    ``heaviest`` is the largest mass among the client's samples.
    """
    sensitivity = 2 * privacy.clip * math.sqrt(heaviest)
    return max(0.0, distance + float(_noise((), sensitivity, privacy, rng)))


def _noise(shape: tuple[int, ...], sensitivity: float, privacy: PrivacySettings, rng: Generator) -> ndarray:
    return rng.standard_normal(shape) * (sensitivity * noise_multiplier(privacy.epsilon, privacy.delta))


def compose_privacy(privacy: PrivacySettings, releases: int) -> tuple[float, float]:
    """Return the total (epsilon, delta) of one client, by basic composition.

    ``releases`` is the number of noisy measures and distances that the client sends. In a run of K iterations, it sends
    K measures and one distance. With ``trace`` (fedwad.py), it sends 2 K more distances. Tighter bounds exist. A
    delta of 1 or more gives no guarantee.
    """
    return releases * privacy.epsilon, releases * privacy.delta
