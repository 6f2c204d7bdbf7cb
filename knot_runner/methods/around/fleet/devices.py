"""Speeds, availability and failures of the clients of a simulated fleet, in virtual time.

Random draws depend on the run's seed and the client's number. The draws for failures also depend on the round. Draws
are therefore the same in every engine, in every cluster, and in a resumed run.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import Method, Sent, by_client, size
from knot_runner.methods.federated.averaging import received
from knot_runner.methods.federation import FederatedState, Federation

#: Number of bits of each value that clients send or receive. It does not depend on ``hardware.precision``.
BITS = 32


@dataclass(frozen=True)
class Simulation:
    """A ``method`` together with the simulated ``fleet`` on which the method's clients run."""

    method: Method
    fleet: FleetSettings

    def times(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int,
        requests: list[LocalTraining],
    ) -> dict[int, WorkTime]:  # fmt: skip
        """Return a dict from client number to the virtual time that the client needs for its ``requests``.

        All clients are assumed to send and receive the same number of values.
        """
        if not requests:
            return {}
        down = (self.method.received or received)(config, state, federation, requests[0].client)
        up = self.method.send(Sent(0, 0, self.method.empty_message(config, state, federation, round)), 1)
        width = federation.model.weights.element_size()
        return work_times(self.fleet, federation, requests, size(down) / width, up.bytes / width)


@dataclass(frozen=True)
class WorkTime:
    """The virtual time that a client needs for its work in a round.

    Attributes:
        epochs: The number of epochs for which the client trains the model that it sends.
        epoch: The seconds for training all of the client's models, divided by ``epochs``.
        sending: The seconds for receiving and sending messages.
    """

    epochs: int
    epoch: float
    sending: float

    @property
    def total(self) -> float:
        """Return the seconds from the start of the work until the client's update arrives."""
        return self.sending + self.epochs * self.epoch

    def epochs_until(self, deadline: float) -> int:
        """Return how many epochs the client can complete so that its update arrives by ``deadline``.

        ``deadline``: seconds from the start of the work. The result is at most ``epochs``.
        """
        epochs = self.epochs
        while epochs and self.sending + epochs * self.epoch > deadline:
            epochs -= 1
        return epochs


def seconds_per_example(fleet: FleetSettings, federation: Federation) -> Tensor:
    """Return each client's training time per example, in seconds, float64 [N]."""
    compute = fleet.compute
    return compute.median * torch.exp(compute.sigma * _normal(federation, "compute"))


def sending_seconds(fleet: FleetSettings, federation: Federation, down: float, up: float) -> Tensor:
    """Return each client's time to receive ``down`` values and send ``up`` values, in seconds, float64 [N]."""
    network = fleet.network
    if network is None:
        return torch.zeros(len(federation.clients), dtype=torch.float64)
    both = BITS * (down / network.down + up / network.up) / 1e6
    return both / torch.exp(network.sigma * _normal(federation, "network"))


def sent_first(requests: list[LocalTraining]) -> list[LocalTraining]:
    """Sort ``requests`` into groups: every client's first request, then every client's second request, and so on.

    Within each group, requests are sorted by client number. A client sends the model of its first request.
    """
    works = [work for _, work in sorted(by_client(requests).items())]
    turns = itertools.zip_longest(*works)
    return [request for request in itertools.chain.from_iterable(turns) if request is not None]


def work_times(
    fleet: FleetSettings, federation: Federation, requests: list[LocalTraining], down: float, up: float
) -> dict[int, WorkTime]:
    """Return a dict from client number to the virtual time that the client needs for its ``requests``.

    Each client receives ``down`` values and sends ``up`` values. The training time covers all models that the client
    trains. It includes epochs that a local program trains in addition to the request's epochs
    (``LocalProgram.further``).
    """
    compute = seconds_per_example(fleet, federation)
    sending = sending_seconds(fleet, federation, down, up)
    times = {}
    for client, work in by_client(requests).items():
        request = work[0]
        recipe = request.recipe
        examples = len(request.rows)
        if recipe.drop_last:
            examples -= examples % recipe.batch_size
        further = sum(sent.program.further for sent in work if sent.program is not None)
        epochs = recipe.epochs
        all_epochs = sum(sent.recipe.epochs for sent in work) + further
        epoch = examples * float(compute[client]) * (all_epochs / epochs)
        times[client] = WorkTime(epochs, epoch, float(sending[client]))
    return times


def shortened_work(work: list[LocalTraining], epochs: int) -> list[LocalTraining]:
    """Return ``work``, the requests of one client, limited to fewer epochs.

    The request for the model that the client sends is limited to its first ``epochs`` epochs. Requests for models that
    the client keeps are limited to the same fraction of their epochs. Each request has at least one epoch.
    """
    whole = work[0].recipe.epochs
    return [shortened(request, max(request.recipe.epochs * epochs // whole, 1)) for request in work]


def shortened(request: LocalTraining, epochs: int) -> LocalTraining:
    """Return the request limited to its first ``epochs`` epochs, counted over all phases in order."""
    phases = []
    left = epochs
    for phase in request.recipe.phases:
        if left:
            phases.append(replace(phase, epochs=min(phase.epochs, left)))
            left -= phases[-1].epochs
    return replace(request, recipe=replace(request.recipe, phases=tuple(phases)))


def failures(fleet: FleetSettings, federation: Federation, round: int) -> list[float | None]:
    """Return, for each client, the fraction of its work that the client completes before it fails in ``round``.

    For a client that does not fail, the entry is None.
    """
    draws = generator(federation.seed, "fleet", "dropout", round)
    fails, after = torch.rand(2, len(federation.clients), generator=draws, dtype=torch.float64)
    shares: list[float | None] = [None] * len(after)
    for client in (fails < fleet.dropout).nonzero()[:, 0].tolist():
        shares[client] = float(after[client])
    return shares


def available_clients(fleet: FleetSettings, federation: Federation, at: float) -> list[bool]:
    """Return, for each client, whether it is available at the virtual time ``at`` (in seconds)."""
    spec = fleet.availability
    count = len(federation.clients)
    if spec is None:
        return [True] * count
    return ((at / spec.period + _phases(federation)) % 1 < spec.share).tolist()


def await_clients(fleet: FleetSettings, federation: Federation, clients: list[int], at: float) -> float:
    """Return the first virtual time at which one of ``clients`` is available. The search starts at the time ``at``."""
    while True:
        available = available_clients(fleet, federation, at)
        if any(available[client] for client in clients):
            return at
        period = fleet.availability.period
        phases = _phases(federation)[clients]
        # the first time at which one of the clients becomes available
        change = float(((torch.ceil(at / period + phases) - phases) * period).min())
        at = max(change, math.nextafter(at, math.inf))


def _phases(federation: Federation) -> Tensor:
    draws = generator(federation.seed, "fleet", "phase")
    return torch.rand(len(federation.clients), generator=draws, dtype=torch.float64)


def _normal(federation: Federation, what: str) -> Tensor:
    draws = generator(federation.seed, "fleet", what)
    return torch.randn(len(federation.clients), generator=draws, dtype=torch.float64)
