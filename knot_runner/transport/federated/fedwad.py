"""FedWaD: the Wasserstein distance between the samples of two clients, by messages alone (Algorithm 1).

Every iteration, with xi for the server's measure and t the place on each geodesic::

    clients   xi_mu = interpolate(xi, mu, t),  xi_nu = interpolate(xi, nu, t)
    server    xi    = interpolate(xi_nu, xi_mu, t)

After K of them the clients send W(mu, xi) and W(xi, nu), whose sum is never below W(mu, nu), and equal to it where xi
lies on a geodesic between the two (eq. 6). The excess does not go to 0 in general: in approximate mode it ends at a
floor that falls with S; in exact mode at t = 1/2, on finite samples, it stalls near 1e-4 of the distance at a coupling
that is not optimal, though Theorem 2 says that it vanishes. That is no error of rounding: a start_scale far below the
samples' spread ends about 5 times as near, a random t 10 times (200 + 200 points of two Gaussians in the plane).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from knot_runner.config.settings.methods.transport import FedwadSettings
from knot_runner.transport.federated import server
from knot_runner.transport.federated.client import Client
from knot_runner.transport.federated.measure import Measure
from knot_runner.transport.federated.message import Draws, Message, SampleHolder, place
from knot_runner.transport.federated.privacy import compose_privacy
from knot_runner.util.errors import UserError


@dataclass(frozen=True, eq=False)
class FederatedDistance:
    """W(mu, nu) as the server knows it in the end, and how it came there; K iterations."""

    #: W(mu, xi^K) + W(xi^K, nu), an upper bound
    value: float
    #: xi^K
    xi: Measure
    #: [K] points of xi^k
    supports: tuple[int, ...]
    #: [K] what the server knows after each iteration without any distance (Theorem 3.2); empty for random t
    server_only: tuple[float, ...]
    #: (epsilon, delta) spent by each client in all, by basic composition; None without privacy
    spent: tuple[float, float] | None
    #: traced runs: [K] value after each iteration; the last is ``value``
    values: tuple[float, ...] = ()
    #: traced runs: [K] A^(k), the sum of the four distances, which never rises in exact mode (Theorem 2)
    sums: tuple[float, ...] = ()
    #: traced runs: xi^0 .. xi^K
    measures: tuple[Measure, ...] = ()


@dataclass
class _Course:
    """What the server keeps: its measure, and what it wrote down after each iteration."""

    xi: Measure
    trace: bool
    supports: list[int] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.measures += [self.xi] * self.trace

    def advance(self, first: Message, second: Message, t: float, mode: Literal["exact", "approximate"]) -> None:
        self.xi, between = server.next_measure(first, second, t, mode)
        self.supports.append(self.xi.size)
        self.between.append(between)
        if self.trace:
            self.measures.append(self.xi)
            self.totals.append(server.total(first, second))
            self.sums.append(first.remainder + between + second.remainder)


def federated_distance(
    mu: SampleHolder, nu: SampleHolder, options: FedwadSettings, dimension: int, draws: Draws, trace: bool = False
) -> FederatedDistance:
    """W_2 between the samples of two clients, of ``dimension`` features, as the server computes it.

    ``trace``: clients send distances in every iteration too, for the course of the value (approximate mode: twice the
    work), which tells the server more than the algorithm needs. ``draws`` gives the start and the server's random t.
    """
    course = _Course(server.first_measure(options.support, dimension, options.start_scale, draws("start")), trace)
    for k in range(1, options.iterations + 1):
        answers = mu.interpolated(course.xi, k, trace), nu.interpolated(course.xi, k, trace)
        course.advance(*answers, place(options.t, partial(draws, "server", "t", k)), options.mode)
    return _finished(course, server.total(mu.distance(course.xi), nu.distance(course.xi)), options)


def _finished(course: _Course, value: float, options: FedwadSettings) -> FederatedDistance:
    server_only: tuple[float, ...] = ()
    if options.t != "random":
        server_only = tuple(server.server_only(w, options.t) for w in course.between)
    releases = options.iterations + 1 + 2 * options.iterations * course.trace
    spent = compose_privacy(options.privacy, releases) if options.privacy else None
    # the totals sent in iteration k are of xi^(k-1)
    values = (*course.totals[1:], value) if course.trace else ()
    supports, sums, measures = tuple(course.supports), tuple(course.sums), tuple(course.measures)
    return FederatedDistance(value, course.xi, supports, server_only, spent, values, sums, measures)


def distance_between(
    mu: Measure, nu: Measure, options: FedwadSettings, draws: Draws, trace: bool = False
) -> FederatedDistance:
    """:func:`federated_distance` between two clients of one machine, each with its measure.

    Raises :class:`UserError` for measures of different numbers of features.
    """
    dimensions = mu.points.shape[1], nu.points.shape[1]
    if dimensions[0] != dimensions[1]:
        raise UserError(f"samples: {dimensions[0]} features on one side and {dimensions[1]} on the other")
    parties = Client(mu, options, "mu", draws), Client(nu, options, "nu", draws)
    return federated_distance(*parties, options, dimensions[0], draws, trace)
