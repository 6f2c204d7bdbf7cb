"""The server of FedWaD: sees messages and its own measures, never a sample (Algorithm 1, lines 7 and 10)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from knot_runner.transport.federated.interpolate import interpolate
from knot_runner.transport.federated.measure import Measure
from knot_runner.transport.federated.message import Message


def first_measure(support: int, dimension: int, scale: float, rng: np.random.Generator) -> Measure:
    """xi^0: ``support`` points of N(0, scale^2 I), of equal masses."""
    return Measure(scale * rng.standard_normal((support, dimension)))


def next_measure(
    first: Message, second: Message, t: float, mode: Literal["exact", "approximate"]
) -> tuple[Measure, float]:
    """xi^k between the two clients' measures, from the second towards the first as in the public code, and their W_2.

    That W_2 is also W(xi_mu, xi^k) + W(xi^k, xi_nu): xi^k lies on their geodesic, in approximate mode by Theorem 1,
    since both measures have S points and the masses of xi^0.
    """
    return interpolate(second.measure, first.measure, t, mode)


def total(first: Message, second: Message) -> float:
    """W(mu, xi) + W(xi, nu) of the xi sent to both clients: line 10, an upper bound of W(mu, nu)."""
    return first.distance + second.distance


def server_only(between: float, t: float) -> float:
    """W(mu, nu) from ``between`` = W(xi_mu^k, xi_nu^k) of one iteration: no client sends a distance (Theorem 3.2).

    Theorem 3 states 2 W(xi_mu^1, xi_nu^1) for Gaussians of equal covariance, xi^0 among them, and t = 1/2. At any t
    that both clients use, the two means differ by t (m_mu - m_nu) whatever xi is, so it is W / t. Of other measures it
    is an estimate, neither upper nor lower bound.
    """
    return between / t
