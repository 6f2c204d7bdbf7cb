"""Everything that a client sends: the privacy boundary of FedWaD as a type.

The type fixes the content of messages, not what can be inferred from it. Given xi and t one can solve eq. 10 for the
means of the samples that went to each point of xi; with as many points as samples, or in exact mode, these are the
samples. A random t, known only to the client, blurs this a little; only noise (``privacy``) gives a guarantee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from knot_runner.transport.federated.measure import Measure

#: a generator of its own for names such as ("mu", "t", 3); the same names give the same numbers
Draws = Callable[..., np.random.Generator]


@dataclass(frozen=True, eq=False)
class Message:
    """One answer of a client to a measure xi. Fields that are not sent are None."""

    #: interpolating measure between xi and the client's samples
    measure: Measure | None = None
    #: W_2(samples, xi); sent at the end, and in every iteration of a traced run
    distance: float | None = None
    #: W_2(samples, ``measure``); traced runs only
    remainder: float | None = None


class SampleHolder(Protocol):
    """The interface of clients to the server: a :class:`~knot_runner.transport.federated.client.Client`, local or
    remote."""

    def interpolated(self, xi: Measure, iteration: int, trace: bool) -> Message:
        """A measure between xi and the samples; traced: also the two distances."""
        ...

    def distance(self, xi: Measure) -> Message:
        """W_2 between the samples and xi."""
        ...


def place(t: float | Literal["random"], rng: Callable[[], np.random.Generator]) -> float:
    """Place on the geodesic of one interpolation: ``t``, or a draw from U(0, 1) by ``rng()``."""
    return float(rng().random()) if t == "random" else float(t)
