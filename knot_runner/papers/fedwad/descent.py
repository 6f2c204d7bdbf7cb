"""Wasserstein coresets (Claici et al. 2018): points that are moved toward samples by gradient descent.

In the federated version (FedWaD section 4 and App. D.2), the server holds the points, and a client holds the samples.
They compute the distance by FedWaD. Then the server computes the gradient of the distance between the points and
FedWaD's last interpolating measure. This needs no further information from the client.
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
    """The state of the descent: the ``points``, and Adam's moments ``first`` and ``second``. All have shape [K, d]."""

    points: np.ndarray
    first: np.ndarray
    second: np.ndarray


def first_descent(count: int, dimension: int, rng: np.random.Generator) -> Descent:
    """Return the initial state: ``count`` points drawn from N(0, I) in R^dimension, and zero moments."""
    points = rng.standard_normal((count, dimension))
    return Descent(points, np.zeros_like(points), np.zeros_like(points))


def descent_step(state: Descent, gradient: np.ndarray, lr: float, count: int) -> Descent:
    """Return the state after a step of Adam with learning rate ``lr``.

    ``gradient`` has shape [K, d]. ``count`` is the step number; the first step is 1.
    """
    slow, slower = BETAS
    first = slow * state.first + (1 - slow) * gradient
    second = slower * state.second + (1 - slower) * gradient**2
    change = (first / (1 - slow**count)) / (np.sqrt(second / (1 - slower**count)) + TINY)
    return Descent(state.points - lr * change, first, second)


def gradient(points: np.ndarray, target: Measure) -> tuple[float, np.ndarray]:
    """Return the W2 distance between ``points`` [K, d] and ``target``, and the gradient of W2, shape [K, d].

    The ``points`` c_i have equal masses. The points of ``target`` are y_j, and P is the optimal plan. The distance is
    ``W2 = (sum_ij P_ij |c_i - y_j|^2)^(1/2)``. With P held constant, the derivative of W2 with respect to c_i is
    ``(c_i / K - (P y)_i) / W2``.
    """
    plan, unit, distance = transport(Measure(points), target)
    softened = math.sqrt(distance**2 + SOFTENING)
    return distance, (points / len(points) - plan @ target.points / unit) / softened


def federated_gradient(
    points: np.ndarray, sample: np.ndarray, options: FedwadSettings, draws: Draws
) -> tuple[float, np.ndarray]:
    """Return FedWaD's distance between ``points`` [K, d] and ``sample`` [n, d], and a gradient, shape [K, d].

    The gradient is that of another distance: the W2 distance between ``points`` and FedWaD's last interpolating
    measure.
    """
    distance = distance_between(Measure(points), Measure(sample), options, draws)
    return distance.value, gradient(points, distance.xi)[1]
