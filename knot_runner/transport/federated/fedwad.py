"""FedWaD: the Wasserstein distance between the samples of two clients, computed from messages (Algorithm 1; server.py).

mu and nu are the clients' samples, xi is the server's measure, and t is the position on each geodesic. Every iteration
computes::

    clients   xi_mu = interpolate(xi, mu, t),  xi_nu = interpolate(xi, nu, t)
    server    xi    = interpolate(xi_nu, xi_mu, t)

After K iterations, the clients send W(mu, xi) and W(xi, nu). The sum of these distances is at least W(mu, nu), with
equality if xi lies on a geodesic between mu and nu (eq. 6). In general, the excess of the sum over W(mu, nu) does not
converge to 0. In approximate mode, the excess approaches a positive limit. This limit is smaller for a larger number S
of points.

In exact mode at t = 1/2, the excess stops near 1e-4 of the distance, although Theorem 2 states that it vanishes. The
cause is not rounding: the excess is 5 times smaller with a start_scale far below the samples' spread, and 10 times
smaller with a random t. We measured this on two samples of 200 points from Gaussians in 2-D.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from knot_runner.config.settings.methods.transport import FedwadSettings
from knot_runner.transport.federated import server
from knot_runner.transport.federated.measure import Measure, interpolate, wasserstein
from knot_runner.transport.federated.privacy import clip_to_ball, compose_privacy, noisy_distance, noisy_points
from knot_runner.transport.federated.server import Draws, Message, place
from knot_runner.util.errors import UserError


class Client:
    """A client of FedWaD. It never sends its samples.

    ``name`` seeds the client's random draws and must be unique. With ``options.privacy``, the samples are clipped and
    all messages contain noise.
    """

    def __init__(self, samples: Measure, options: FedwadSettings, name: str, draws: Draws) -> None:
        if options.privacy:
            samples = Measure(clip_to_ball(samples.points, options.privacy.clip), samples.weights)
        self._samples = samples
        self._options = options
        self._draws = partial(draws, name)

    def interpolated(self, xi: Measure, iteration: int, trace: bool) -> Message:
        """Return a message with the measure interpolated from ``xi`` towards the samples.

        If ``trace`` is true, the message also contains two distances: from the samples to ``xi``, and from the samples
        to the interpolated measure. The message does not contain the position t on the geodesic. ``iteration`` seeds
        the random draws.
        """
        t = place(self._options.t, self._draws, "t", iteration)
        measure, distance = interpolate(xi, self._samples, t, self._options.mode)
        if self._options.privacy:
            rng = self._draws("measure", iteration)
            measure = Measure(noisy_points(measure.points, t, self._options.privacy, rng), measure.weights)
        if not trace:
            return Message(measure)
        remainder = (1 - t) * distance  # an exact measure lies on a geodesic
        if self._options.mode != "exact":
            # This second transport problem doubles the work of a traced iteration in approximate mode.
            remainder = wasserstein(measure, self._samples)
        sent = self._released(distance, "distance", iteration), self._released(remainder, "remainder", iteration)
        return Message(measure, *sent)

    def distance(self, xi: Measure) -> Message:
        """Return a message with the distance W_2 between the samples and ``xi``."""
        return Message(distance=self._released(wasserstein(xi, self._samples), "last"))

    def _released(self, distance: float, *names: object) -> float:
        if self._options.privacy is None:
            return distance
        heaviest = float(self._samples.masses().max())
        return noisy_distance(distance, heaviest, self._options.privacy, self._draws(*names))


@dataclass(frozen=True, eq=False)
class FederatedDistance:
    """The server's value of the distance W(mu, nu), and intermediate results of all K iterations."""

    #: W(mu, xi^K) + W(xi^K, nu), an upper bound
    value: float
    #: final measure xi^K
    xi: Measure
    #: [K] number of points of xi^k after each iteration k
    supports: list[int]
    #: [K] estimates from measures alone, without any distance from clients (Theorem 3); empty for random t
    server_only: list[float]
    #: total (epsilon, delta) of each client, by basic composition; None without privacy
    spent: tuple[float, float] | None
    #: traced runs: [K] value after each iteration; the last is ``value``
    values: list[float]
    #: traced runs: [K] A^(k), the sum of the four traced distances; it does not increase in exact mode (Theorem 2)
    sums: list[float]
    #: traced runs: xi^0 .. xi^K
    measures: list[Measure]


def federated_distance(
    mu: Client, nu: Client, options: FedwadSettings, dimension: int, draws: Draws, trace: bool = False
) -> FederatedDistance:
    """Compute W_2 between the samples of two clients by FedWaD.

    Args:
        mu: The first client.
        nu: The second client.
        options: Settings of FedWaD.
        dimension: The number of features.
        draws: Function that returns random generators: for the initial points, and for the server's t if t is random.
        trace: Whether clients also send distances in every iteration, to show the convergence. These distances reveal
            more to the server than the algorithm needs.
    """
    # xi^0: points of N(0, start_scale^2 I), of equal masses
    xi = start = Measure(options.start_scale * draws("start").standard_normal((options.support, dimension)))
    supports = []
    server_only = []
    values = []
    sums = []
    measures = []
    for k in range(1, options.iterations + 1):
        first = mu.interpolated(xi, k, trace)
        second = nu.interpolated(xi, k, trace)
        xi, apart = server.next_measure(first, second, place(options.t, draws, "server", "t", k), options.mode)
        supports.append(xi.size)
        if options.t != "random":
            server_only.append(server.server_only(apart, options.t))
        if trace:
            values.append(server.total(first, second))  # of the measure before this iteration
            sums.append(first.remainder + apart + second.remainder)
            measures.append(xi)
    value = server.total(mu.distance(xi), nu.distance(xi))
    if trace:
        values = [*values[1:], value]
        measures = [start, *measures]
    spent = None
    if options.privacy:
        releases = options.iterations + 1 + 2 * options.iterations * trace
        spent = compose_privacy(options.privacy, releases)
    return FederatedDistance(value, xi, supports, server_only, spent, values, sums, measures)


def distance_between(
    mu: Measure, nu: Measure, options: FedwadSettings, draws: Draws, trace: bool = False
) -> FederatedDistance:
    """Simulate two clients in this process, and return the :func:`federated_distance` between their measures.

    Raises:
        UserError: The measures have different numbers of features.
    """
    dimensions = mu.points.shape[1], nu.points.shape[1]
    if dimensions[0] != dimensions[1]:
        raise UserError(
            f"the two sets must have the same number of features, got {dimensions[0]} and {dimensions[1]}", "samples"
        )
    parties = Client(mu, options, "mu", draws), Client(nu, options, "nu", draws)
    return federated_distance(*parties, options, dimensions[0], draws, trace)
