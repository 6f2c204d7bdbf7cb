"""A client of FedWaD: holds samples, answers with messages (Algorithm 1, lines 3 to 6 and 9)."""

from __future__ import annotations

from functools import partial

from knot_runner.config.settings.methods.transport import FedwadSettings
from knot_runner.transport.federated.interpolate import interpolate, wasserstein
from knot_runner.transport.federated.measure import Measure
from knot_runner.transport.federated.message import Draws, Message, place
from knot_runner.transport.federated.privacy import clip_to_ball, noisy_distance, noisy_points


class Client:
    """Samples that stay here. ``name`` keys this client's draws (t, noise) and must differ from any other's.

    With ``options.privacy`` the samples are clipped, and all that is sent is released with noise.
    """

    def __init__(self, samples: Measure, options: FedwadSettings, name: str, draws: Draws) -> None:
        if options.privacy:
            samples = Measure(clip_to_ball(samples.points, options.privacy.clip), samples.weights)
        self._samples = samples
        self._options = options
        self._draws = partial(draws, name)

    def interpolated(self, xi: Measure, iteration: int, trace: bool) -> Message:
        """The interpolating measure from ``xi`` towards the samples, at a t that the server is not told if random."""
        t = place(self._options.t, partial(self._draws, "t", iteration))
        measure, distance = interpolate(xi, self._samples, t, self._options.mode)
        if self._options.privacy:
            rng = self._draws("measure", iteration)
            measure = Measure(noisy_points(measure.points, t, self._options.privacy, rng), measure.weights)
        if not trace:
            return Message(measure)
        # an exact measure lies on a geodesic: the way from there on is known
        exact = self._options.mode == "exact"
        remainder = (1 - t) * distance if exact else wasserstein(measure, self._samples)
        sent = self._released(distance, "distance", iteration), self._released(remainder, "remainder", iteration)
        return Message(measure, *sent)

    def distance(self, xi: Measure) -> Message:
        """W_2 between the samples and ``xi``, with xi's masses as they are."""
        return Message(distance=self._released(wasserstein(xi, self._samples), "last"))

    def _released(self, distance: float, *names: object) -> float:
        if self._options.privacy is None:
            return distance
        heaviest = float(self._samples.masses().max())
        return noisy_distance(distance, heaviest, self._options.privacy, self._draws(*names))
