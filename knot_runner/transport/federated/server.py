"""The server of FedWaD, which sees messages and its own measures, but no samples (Algorithm 1, lines 7 and 10).

:class:`Message` holds everything that a client sends. However, the server can draw conclusions from the messages. If
the server knows its measure xi and t, it can solve eq. 10 for the mean of the samples that are assigned to each point
of xi. With as many points as samples, or in exact mode, these means are the samples themselves. If t is random and
known only to the client, the server can compute these means only approximately. Only noise (``privacy``) gives a
guarantee.
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
    """A client's reply to a measure xi from the server. Values that the client does not send are None."""

    #: interpolating measure between xi and the client's samples
    measure: Measure | None = None
    #: W_2(samples, xi); sent at the end, and in every iteration of a traced run
    distance: float | None = None
    #: W_2(samples, ``measure``); traced runs only
    remainder: float | None = None


def place(t: float | Literal["random"], draws: Draws, *names: object) -> float:
    """Return the position of an interpolation on its geodesic.

    The position is ``t``. If ``t`` is "random", the position is drawn from U(0, 1), seeded by ``names``.
    """
    if t == "random":
        t = draws(*names).random()
    return float(t)


def next_measure(
    first: Message, second: Message, t: float, mode: Literal["exact", "approximate"]
) -> tuple[Measure, float]:
    """Return the server's next measure xi^k, and W_2 between the measures xi_mu and xi_nu of the two clients.

    xi^k is interpolated from the second client's measure towards the first client's measure, as in the public code.
    In both modes, xi^k lies on a geodesic between xi_mu and xi_nu. The returned W_2 therefore equals
    W(xi_mu, xi^k) + W(xi^k, xi_nu).
    """
    # In approximate mode, Theorem 1 applies, because both measures have S points and the masses of xi^0.
    return interpolate(second.measure, first.measure, t, mode)


def total(first: Message, second: Message) -> float:
    """Return the sum W(mu, xi) + W(xi, nu), which is an upper bound of W(mu, nu) (Algorithm 1, line 10).

    xi is the measure that the server sent to both clients.
    """
    return first.distance + second.distance


def server_only(between: float, t: float) -> float:
    """Return an estimate of W(mu, nu) that needs no distances from the clients.

    ``between`` is W(xi_mu^k, xi_nu^k), the distance between the measures of the two clients in iteration k. Both
    clients must use the same ``t``. The estimate is ``between / t``. It is exact for k = 1 and t = 1/2 if mu, nu and
    xi^0 are Gaussians with equal covariance (Theorem 3). For other measures, it is neither an upper nor a lower bound.
    """
    # If both clients use the same t, the means of their measures differ by t (m_mu - m_nu), for any xi.
    return between / t
