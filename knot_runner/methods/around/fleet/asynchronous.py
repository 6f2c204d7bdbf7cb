"""Buffered asynchronous aggregation (FedBuff, Nguyen et al. 2022, Algorithm 1) for any federated method.

At any time, ``training.clients_per_round`` clients train. The server takes a step when ``buffer`` updates have arrived.
A round is one server step, and its participants are the clients whose updates are in the buffer. The version of a model
is the number of server steps before the model was sent.

State, in addition to the clock:

- ``fleet/in_flight`` [m, 2] int64: the client number and model version of each client in training
- ``fleet/arrivals`` [m] float64: the times at which these clients finish or fail
- the server's state at each model version from which a client is still training (:func:`state_at_start`)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.devices import Simulation
from knot_runner.methods.around.fleet.synchronous import CLOCK
from knot_runner.methods.contract import entries_below
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.util.errors import UserError

#: Prefixes of state entries that are not sent to clients.
NOT_SENT = ("client/", "server/", "fleet/")
IN_FLIGHT = "fleet/in_flight"
ARRIVALS = "fleet/arrivals"


@dataclass(frozen=True, order=True)
class Flight:
    """One client's training, which finishes or fails at the virtual time ``arrives``.

    ``version`` is the version of the model that the client received.
    """

    arrives: float
    client: int
    version: int


@dataclass(frozen=True)
class ServerStep:
    """A server step of asynchronous aggregation.

    Attributes:
        updates: The aggregated updates, sorted by client number.
        flying: The clients that are still training.
        clock: The virtual time of the step, in seconds.
        dropped: The number of clients that failed since the previous step.
    """

    updates: list[Flight]
    flying: list[Flight]
    clock: float
    dropped: int


class Asynchronous(Simulation):
    """A method with asynchronous aggregation on a simulated fleet."""

    def init(self, config: FederatedSettings, federation: Federation) -> FederatedState:
        """Return the method's initial state, with the clock at 0 seconds and no client in training.

        Raises:
            UserError: ``fleet.buffer`` is larger than the number of clients that train at the same time.
        """
        at_once = federation.participants
        fleet = self.fleet
        if fleet.buffer is not None and fleet.buffer > at_once:
            raise UserError(
                f"expected at most {at_once} clients (training.clients_per_round), got {fleet.buffer}",
                "fleet.buffer",
            )
        return {**self.method.init(config, federation), **_in_flight([], 0.0)}

    def plan(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> list[LocalTraining]:
        """Return the requests whose updates are aggregated in the next server step.

        Each request starts from the model that its client received.
        """
        if self.is_finished(config, state, federation, round):
            return []
        requests: list[LocalTraining] = []
        clients: dict[int, list[int]] = {}
        for update in self.next_step(config, state, federation, round).updates:
            clients.setdefault(update.version, []).append(update.client)
        for version in sorted(clients):
            start = state_at_start(state, version, round)
            requests += self.method.plan(config, start, federation.choosing(clients[version]), version)
        return devices.sent_first(requests)

    def pass_time(
        self, config: FederatedSettings, before: FederatedState, after: FederatedState,
        federation: Federation, round: int,
    ) -> Folded:  # fmt: skip
        """Return the state ``after`` with new entries of the fleet, and the log entries of the fleet.

        The new entries hold the clock, the clients in training, and the server states from which these clients started.
        """
        step = self.next_step(config, before, federation, round)
        kept = {name: tensor for name, tensor in after.items() if not name.startswith("fleet/")}
        for version in {flight.version for flight in step.flying}:
            kept |= version_entries(before, version, round)
        facts: RoundRow = {"clock": step.clock, "dropped": step.dropped, "late": 0, "partial": 0, "staleness": None}
        if step.updates:
            facts["staleness"] = sum(round - update.version for update in step.updates) / len(step.updates)
        return {**kept, **_in_flight(step.flying, step.clock)}, facts

    def is_finished(self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> bool:
        """Return whether the server has taken all ``training.rounds`` steps, or the method plans no requests."""
        alone = federation.choosing([federation.numbers[0]])
        return round >= federation.training.rounds or not self.method.plan(config, state, alone, round)

    def next_step(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> ServerStep:
        """Simulate the fleet until the next server step, and return this step.

        When a client finishes or fails, another client starts from the current model. If several updates arrive at the
        same time, all of them are processed before new clients start. A client that has finished or failed does not
        start again before the next server step. If all clients have finished or failed, the server takes a step with
        the updates that have arrived.

        The result does not depend on trained weights.
        """
        pairs = zip(state[ARRIVALS].tolist(), state[IN_FLIGHT].tolist(), strict=True)
        flying = [Flight(arrives, client, version) for arrives, (client, version) in pairs]
        fleet = self.fleet
        now = float(state[CLOCK])
        received: list[Flight] = []
        done: set[int] = set()
        buffer = fleet.buffer or max(federation.participants // 2, 1)
        while len(received) < buffer:
            if not flying or min(flying).arrives > now:
                flying += self._beginning(config, state, federation, round, flying, done, now)
            if not flying:
                left = sorted(set(federation.numbers) - done)
                if not left:
                    break
                now = devices.await_clients(fleet, federation, left, now)
                continue
            first = min(flying)
            flying.remove(first)
            now = first.arrives
            done.add(first.client)
            if devices.failures(fleet, federation, first.version)[first.client] is None:
                received.append(first)
        return ServerStep(sorted(received, key=lambda flight: flight.client), flying, now, len(done) - len(received))

    def _beginning(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int,
        flying: list[Flight], done: set[int], now: float,
    ) -> list[Flight]:  # fmt: skip
        """Return the clients that start at time ``now``, in FedAvg's sampling order."""
        fleet = self.fleet
        away = done | {flight.client for flight in flying}
        available = devices.available_clients(fleet, federation, now)
        free = [client for client in federation.in_turn(round) if available[client] and client not in away]
        clients = free[: federation.participants - len(flying)]
        if not clients:
            return []
        requests = self.method.plan(config, state, federation.choosing(clients), round)
        failing = devices.failures(fleet, federation, round)
        beginning = []
        for client, time in self.times(config, state, federation, round, requests).items():
            duration = time.total
            share = failing[client]
            if share is not None:
                duration *= share
            beginning.append(Flight(now + duration, client, round))
        return beginning


def _in_flight(flying: list[Flight], clock: float) -> FederatedState:
    who = [[flight.client, flight.version] for flight in flying]
    when = [flight.arrives for flight in flying]
    return {
        CLOCK: torch.tensor([clock], dtype=torch.float64),
        IN_FLIGHT: torch.tensor(who, dtype=torch.int64).reshape(-1, 2),
        ARRIVALS: torch.tensor(when, dtype=torch.float64),
    }


def state_at_start(state: FederatedState, version: int, round: int) -> FederatedState:
    """Return the state from which clients with model version ``version`` began to train.

    ``state`` is the state before the server step of ``round``. If ``version`` is smaller than ``round``, the entries
    that clients receive are replaced by the entries ``fleet/sent/<version>/<name>``.
    """
    if version == round:
        return state
    kept = {name: tensor for name, tensor in state.items() if name.startswith(NOT_SENT)}
    return kept | entries_below(state, f"fleet/sent/{version}/")


def version_entries(state: FederatedState, version: int, round: int) -> FederatedState:
    """Return the entries ``fleet/sent/<version>/<name>``: the values that clients receive with this model version.

    ``state`` is the state before the server step of ``round``.
    """
    prefix = f"fleet/sent/{version}/"
    if version == round:  # copies, because a commit cannot hold the same tensor under two names
        return {f"{prefix}{name}": part.clone() for name, part in state.items() if not name.startswith(NOT_SENT)}
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
