"""Wasserstein coresets (Claici et al. 2018): gradient descent of points on a distance to samples.

In the federated version (FedWaD 4, D.2), the server holds the points, a client holds the samples, and both run FedWaD.
The server computes the gradient of the distance between the points and FedWaD's last interpolating measure, with this
measure and the transport plan held constant. The server therefore needs no further information from the client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from knot_runner.config.settings.methods.transport import FedwadSettings
from knot_runner.transport.federated.fedwad import distance_between
from knot_runner.transport.federated.measure import Measure, transport
from knot_runner.transport.federated.server import Draws

#: Added to the squared distance before the square root, so that the gradient at distance 0 is 0 (FedWaD's public code).
SOFTENING = 1e-6
#: Constants of Adam (Kingma and Ba 2015).
BETAS = (0.9, 0.999)
TINY = 1e-8


@dataclass(frozen=True, eq=False)
class Descent:
    """The ``points`` and Adam's moments ``first`` and ``second``, each of shape [K, d]."""

    points: np.ndarray
    first: np.ndarray
    second: np.ndarray


def first_descent(count: int, dimension: int, rng: np.random.Generator) -> Descent:
    """Return the initial state: ``count`` points drawn from N(0, I) in R^dimension, with zero moments."""
    points = rng.standard_normal((count, dimension))
    return Descent(points, np.zeros_like(points), np.zeros_like(points))


def descent_step(state: Descent, gradient: np.ndarray, lr: float, count: int) -> Descent:
    """Return ``state`` after a step of Adam with learning rate ``lr``, given the ``gradient`` of shape [K, d].

    ``count``: the number of the step, counted from 1, which Adam's bias correction uses.
    """
    slow, slower = BETAS
    first = slow * state.first + (1 - slow) * gradient
    second = slower * state.second + (1 - slower) * gradient**2
    change = (first / (1 - slow**count)) / (np.sqrt(second / (1 - slower**count)) + TINY)
    return Descent(state.points - lr * change, first, second)


def gradient(points: np.ndarray, target: Measure) -> tuple[float, np.ndarray]:
    """Return W2 between the uniform measure on ``points`` of shape [K, d] and ``target``, and the gradient, [K, d].

    With the optimal plan P held constant, the derivative of (sum_ij P_ij |c_i - y_j|^2)^(1/2) with respect to c_i is
    (c_i / K - (P y)_i) / W2.
    """
    plan, unit, distance = transport(Measure(points), target)
    softened = math.sqrt(distance**2 + SOFTENING)
    return distance, (points / len(points) - plan @ target.points / unit) / softened


def federated_gradient(
    points: np.ndarray, sample: np.ndarray, options: FedwadSettings, draws: Draws
) -> tuple[float, np.ndarray]:
    """Return FedWaD's distance of ``points`` [K, d] to ``sample`` [n, d], and a gradient for the points, [K, d].

    The gradient is that of the distance between the points and the last interpolating measure only.
    """
    distance = distance_between(Measure(points), Measure(sample), options, draws)
    return distance.value, gradient(points, distance.xi)[1]
