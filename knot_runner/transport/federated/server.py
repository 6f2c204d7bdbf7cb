"""The server of FedWaD, which reads messages and the server's measures, but no samples (Algorithm 1, lines 7 and 10).

:class:`Message` holds everything that a client sends. The class limits the content of messages, but not the conclusions
that the server can draw from the content. Given xi and t, the server can solve eq. 10 for the mean of the samples
assigned to each point of xi. With as many points as samples, or in exact mode, these means are the samples. If t is
random and known only to the client, the server can compute these means only approximately. Only noise (``privacy``)
gives a guarantee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from knot_runner.transport.federated.measure import Measure, interpolate

#: Function that returns a random generator for names such as ("mu", "t", 3). Equal names give equal numbers.
Draws = Callable[..., np.random.Generator]


@dataclass(frozen=True, eq=False)
class Message:
    """A client's reply to a measure xi from the server. Fields that are not sent are None."""

    #: interpolating measure between xi and the client's samples
    measure: Measure | None = None
    #: W_2(samples, xi); sent at the end, and in every iteration of a traced run
    distance: float | None = None
    #: W_2(samples, ``measure``); traced runs only
    remainder: float | None = None


def place(t: float | Literal["random"], draws: Draws, *names: object) -> float:
    """Return the position of an interpolation on the geodesic: ``t``, or a draw from U(0, 1) seeded by ``names``."""
    if t == "random":
        t = draws(*names).random()
    return float(t)


def next_measure(
    first: Message, second: Message, t: float, mode: Literal["exact", "approximate"]
) -> tuple[Measure, float]:
    """Return xi^k, interpolated between the measures of the two clients, and the W_2 between these measures.

    xi^k is computed from the second measure to the first, as in the public code. The returned W_2 equals W(xi_mu, xi^k)
    + W(xi^k, xi_nu), because xi^k lies on the geodesic between xi_mu and xi_nu. In approximate mode this follows from
    Theorem 1, since both measures have S points and the masses of xi^0.
    """
    return interpolate(second.measure, first.measure, t, mode)


def total(first: Message, second: Message) -> float:
    """Return W(mu, xi) + W(xi, nu) for the xi sent to both clients (line 10), an upper bound of W(mu, nu)."""
    return first.distance + second.distance


def server_only(between: float, t: float) -> float:
    """Return W(mu, nu) from ``between`` = W(xi_mu^k, xi_nu^k) of one iteration (Theorem 3.2).

    No client needs to send a distance. For t = 1/2, and if mu, nu and xi^0 are Gaussians with equal covariance, Theorem
    3 gives W(mu, nu) = 2 W(xi_mu^1, xi_nu^1). If both clients use the same t, the two means differ by t (m_mu - m_nu)
    for any xi, so the result is W / t. For other measures, the result is an estimate, neither an upper nor a lower
    bound.
    """
    return between / t
