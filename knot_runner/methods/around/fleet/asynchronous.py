"""Buffered asynchronous aggregation (FedBuff, Nguyen et al. 2022, Algorithm 1) of any federated method.

``training.clients_per_round`` clients train at any time; the server steps whenever ``buffer`` updates have arrived,
each from what the client was sent when it began. A round is a server step, its clients are those of the buffer, and
what follows a method's fold is of them; a model's version is how many steps came before it.
State, beyond the clock: ``fleet/in_flight`` [m, 2] int64, client and version of those who train, ``fleet/arrivals`` [m]
float64, when they finish, and what each version in flight was sent (:func:`as_begun`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.devices import Simulation
from knot_runner.methods.around.fleet.synchronous import CLOCK
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.util.errors import UserError

#: Names of a state that are not sent to clients begin with these.
NOT_SENT = ("client/", "server/", "fleet/")
IN_FLIGHT, ARRIVALS = "fleet/in_flight", "fleet/arrivals"


@dataclass(frozen=True, order=True)
class Flight:
    """A client that trains from what ``version`` was; it finishes, or fails, at time ``arrives``, which orders it."""

    arrives: float
    client: int
    version: int


@dataclass(frozen=True)
class ServerStep:
    """A server step of asynchronous aggregation.

    ``updates``: what is aggregated, by client; ``flying``: the clients still training; ``clock``: its time;
    ``dropped``: the number of clients that failed since the last step.
    """

    updates: list[Flight]
    flying: list[Flight]
    clock: float
    dropped: int


class Asynchronous(Simulation):
    """Server steps of a method by the clients of a fleet."""

    def init(self, config: FederatedSettings, federation: Federation) -> FederatedState:
        """Return the method's initial state at 0 seconds, with no client in flight.

        Raises :class:`UserError` for a buffer that does not fill.
        """
        at_once, fleet = federation.participants, self.fleet
        if fleet.buffer is not None and fleet.buffer > at_once:
            raise UserError(
                f"{fleet.buffer} is more than the {at_once} clients that train at any time "
                f"(training.clients_per_round). Use at most {at_once}",
                "fleet.buffer",
            )
        return {**self.method.init(config, federation), **_in_flight([], 0.0)}

    def arriving(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> list[LocalTraining]:
        """Return the requests whose updates arrive until the next server step.

        Each trains from what its client was sent when it began.
        """
        if self.is_finished(config, state, federation, round):
            return []
        requests, step = [], self.next_step(config, state, federation, round)
        for version in sorted({update.version for update in step.updates}):
            clients = [update.client for update in step.updates if update.version == version]
            begun = as_begun(state, version, round)
            requests += self.method.plan(config, begun, federation.choosing(clients), version)
        return devices.sent_first(requests)

    def pass_time(
        self, config: FederatedSettings, before: FederatedState, after: FederatedState,
        federation: Federation, round: int,
    ) -> Folded:  # fmt: skip
        """Return the state with those who go on training, and the versions that they train from."""
        step = self.next_step(config, before, federation, round)
        kept = {name: tensor for name, tensor in after.items() if not name.startswith("fleet/")}
        for version in {flight.version for flight in step.flying}:
            kept |= version_entries(before, version, round)
        staleness = [round - update.version for update in step.updates]
        mean = sum(staleness) / len(staleness) if staleness else None
        facts: RoundRow = {"clock": step.clock, "dropped": step.dropped, "late": 0, "partial": 0, "staleness": mean}
        return {**kept, **_in_flight(step.flying, step.clock)}, facts

    def is_finished(self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> bool:
        """Return whether the server has taken all its steps, ``training.rounds``."""
        return round >= federation.training.rounds

    def next_step(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> ServerStep:
        """Simulate until the next server step. Depends only on the seed, the clock and the clients in flight.

        A client that finishes is replaced by another, which starts from the current model; updates arriving at one time
        are taken before new clients start. No client starts twice from one model. Where no client can start, the server
        steps with the updates it has.
        """
        pairs = zip(state[ARRIVALS].tolist(), state[IN_FLIGHT].tolist(), strict=True)
        flying = [Flight(arrives, client, version) for arrives, (client, version) in pairs]
        fleet, now = self.fleet, float(state[CLOCK])
        received: list[Flight] = []
        done: set[int] = set()
        buffer = fleet.buffer or max(federation.participants // 2, 1)
        while len(received) < buffer:
            if not any(flight.arrives <= now for flight in flying):
                flying += self._beginning(config, state, federation, round, flying, done, now)
            if not flying:
                left = [client for client in federation.numbers if client not in done]
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
        """Return the clients that start ``now``, as many as there is room for, in the order of FedAvg's sampling."""
        fleet = self.fleet
        available, away = devices.available_clients(fleet, federation, now), done | {flight.client for flight in flying}
        free = [client for client in federation.in_turn(round) if available[client] and client not in away]
        clients = free[: federation.participants - len(flying)]
        if not clients:
            return []
        requests = self.method.plan(config, state, federation.choosing(clients), round)
        failing, beginning = devices.failures(fleet, federation, round), []
        for client, time in self.times(config, state, federation, round, requests).items():
            share = failing[client]
            beginning.append(Flight(now + time.total * (1.0 if share is None else share), client, round))
        return beginning


def _in_flight(flying: list[Flight], clock: float) -> FederatedState:
    who = [[flight.client, flight.version] for flight in flying]
    when = [flight.arrives for flight in flying]
    return {
        CLOCK: torch.tensor([clock], dtype=torch.float64),
        IN_FLIGHT: torch.tensor(who, dtype=torch.int64).reshape(-1, 2),
        ARRIVALS: torch.tensor(when, dtype=torch.float64),
    }


def as_begun(state: FederatedState, version: int, round: int) -> FederatedState:
    """Return ``state`` with what clients are sent as it was before the fold of ``version``.

    ``state``: before the fold of ``round``. Entries of that version are ``fleet/sent/<version>/<name>``. What clients
    keep does not change while they train.
    """
    if version == round:
        return state
    prefix = f"fleet/sent/{version}/"
    then = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {name: tensor for name, tensor in state.items() if name.startswith(NOT_SENT)} | then


def version_entries(state: FederatedState, version: int, round: int) -> FederatedState:
    """Return the entries that keep ``version`` for those who go on training from it.

    ``state``: before the fold of ``round``.
    """
    prefix = f"fleet/sent/{version}/"
    if version == round:  # copies, since commits hold no tensor under two names
        held = {name: tensor for name, tensor in state.items() if not name.startswith(NOT_SENT)}
        return {f"{prefix}{name}": tensor.clone() for name, tensor in held.items()}
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
