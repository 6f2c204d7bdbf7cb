"""Buffered asynchronous aggregation (FedBuff, Nguyen et al. 2022, Algorithm 1) of any federated method.

``training.clients_per_round`` clients train at any time; the server steps whenever ``buffer`` updates have arrived,
each from what the client was sent when it began. A round is a server step, its clients are those of the buffer, and
what follows a method's fold is of them; a model's version is how many steps came before it.
State, beyond the clock: ``fleet/in_flight`` [m, 2] int64, client and version of those who train, ``fleet/arrivals`` [m]
float64, when they finish, and what each version in flight was sent (:mod:`knot_runner.methods.federated.versions`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.config.settings import FederatedSettings, FleetSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.contract import Method
from knot_runner.methods.federated.fleet import devices
from knot_runner.methods.federated.fleet.synchronous import CLOCK, clock_of, sends_models, with_chosen
from knot_runner.methods.federated.own_models import kept_models
from knot_runner.methods.federated.versions import as_begun, version_entries
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.util.errors import UserError

IN_FLIGHT, ARRIVALS = "fleet/in_flight", "fleet/arrivals"


@dataclass(frozen=True)
class Flight:
    """A client that trains from what ``version`` was; it finishes, or fails, at time ``arrives``."""

    arrives: float
    client: int
    version: int


@dataclass(frozen=True)
class ServerStep:
    """A server step: the aggregated ``updates`` (by client), the clients still training (``flying``), the ``clock``,
    and how many clients ``dropped`` out since the last step."""

    updates: list[Flight]
    flying: list[Flight]
    clock: float
    dropped: int


def init(method: Method, fleet: FleetSettings, hp: FederatedSettings, federation: Federation) -> FederatedState:
    """Returns the method's initial state at 0 seconds, with no client in flight. Raises :class:`UserError` for a buffer
    that does not fill."""
    at_once = federation.participants
    if fleet.buffer is not None and fleet.buffer > at_once:
        raise UserError(
            f"{fleet.buffer} is more than the {at_once} clients that train at any time "
            f"(training.clients_per_round); at most {at_once} is right",
            "fleet.buffer",
        )
    return {**method.init(hp, federation), **_in_flight([], 0.0)}


def plan(
    method: Method, fleet: FleetSettings, hp: FederatedSettings, state: FederatedState, federation: Federation,
    round: int,
) -> list[LocalTraining]:  # fmt: skip
    """The updates that arrive until the next server step, each from what its client was sent when it began."""
    if is_finished(method, fleet, hp, state, federation, round):
        return []
    found, step = [], next_step(method, fleet, hp, state, federation, round)
    for version in sorted({update.version for update in step.updates}):
        clients = [update.client for update in step.updates if update.version == version]
        begun = as_begun(hp, state, version, round)
        found += method.plan(hp, begun, with_chosen(federation, clients), version)
    return devices.sent_first(found)


def fold(
    method: Method, fleet: FleetSettings, hp: FederatedSettings,
    state: FederatedState, federation: Federation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Runs the method's fold on updates moved to the current model, stale ones scaled down. What a client trained
    beside the model that it sends stays as it is."""
    step = next_step(method, fleet, hp, state, federation, round)
    staleness = {update.client: round - update.version for update in step.updates}
    after = state
    row: RoundRow = {}
    if requests:
        sent = len(staleness)  # the first ones, see devices.sent_first
        work = zip(requests[:sent], trained[:sent], strict=True)
        moved = [_moved(fleet, hp, state, federation, *one, staleness[one[0].client]) for one in work]
        starts, results = [request for request, _ in moved], [result for _, result in moved]
        after, row = method.fold(hp, state, federation, round, starts + requests[sent:], results + trained[sent:])
        if hp.keeps == "model":  # however far the server moves by it
            after = {**after, **kept_models(trained)}
    kept = {name: tensor for name, tensor in after.items() if not name.startswith("fleet/")}
    for version in {flight.version for flight in step.flying}:
        kept |= version_entries(hp, state, version, round)
    mean = sum(staleness.values()) / len(staleness) if staleness else None
    facts = {"clock": step.clock, "dropped": step.dropped, "late": 0, "partial": 0, "staleness": mean}
    return {**kept, **_in_flight(step.flying, step.clock)}, {**row, **facts}


def is_finished(
    method: Method, fleet: FleetSettings, hp: FederatedSettings, state: FederatedState, federation: Federation,
    round: int,
) -> bool:  # fmt: skip
    """Whether the server has taken all its steps, ``training.rounds``."""
    return round >= federation.training.rounds


def next_step(
    method: Method, fleet: FleetSettings, hp: FederatedSettings, state: FederatedState, federation: Federation,
    round: int,
) -> ServerStep:  # fmt: skip
    """Simulates until the next server step. Depends only on the seed, the clock and the clients in flight.

    A client that finishes is replaced by another, which starts from the current model; updates arriving at one time are
    taken before new clients start. No client starts twice from one model. Where no client can start, the server steps
    with the updates it has.
    """
    flying, now = _flights(state), clock_of(state)
    received: list[Flight] = []
    failed: list[Flight] = []
    buffer = fleet.buffer or max(federation.participants // 2, 1)
    while len(received) < buffer:
        done = {flight.client for flight in (*received, *failed)}
        if not any(flight.arrives <= now for flight in flying):
            flying = flying + _beginning(method, fleet, hp, state, federation, round, flying, done, now)
        if not flying:
            left = [client for client in federation.numbers if client not in done]
            if not left:
                break
            now = devices.await_clients(fleet, federation, left, now)
            continue
        first = min(flying, key=lambda flight: (flight.arrives, flight.client))
        flying, now = [flight for flight in flying if flight != first], first.arrives
        fails = devices.failures(fleet, federation, first.version)[first.client] is not None
        (failed if fails else received).append(first)
    return ServerStep(sorted(received, key=lambda flight: flight.client), flying, now, len(failed))


def _beginning(
    method: Method, fleet: FleetSettings, hp: FederatedSettings,
    state: FederatedState, federation: Federation, round: int,
    flying: list[Flight], done: set[int], now: float,
) -> list[Flight]:  # fmt: skip
    """Returns the clients that start ``now``, as many as there is room for, in the order of FedAvg's sampling."""
    there, away = devices.available_clients(fleet, federation, now), done | {flight.client for flight in flying}
    free = [client for client in federation.in_turn(round) if there[client] and client not in away]
    clients = free[: federation.participants - len(flying)]
    if not clients:
        return []
    requests = method.plan(hp, state, with_chosen(federation, clients), round)
    failing, found = devices.failures(fleet, federation, round), []
    times = devices.work_times(fleet, federation, requests, sends_models(hp))
    for client, time in zip(devices.by_client(requests), times, strict=True):
        share = failing[client]
        found.append(Flight(now + time.total * (1.0 if share is None else share), client, round))
    return found


def _moved(
    fleet: FleetSettings, hp: FederatedSettings, state: FederatedState, federation: Federation, request: LocalTraining,
    result: Trained, staleness: int,
) -> tuple[LocalTraining, Trained]:  # fmt: skip
    """w + (1 + tau)^-a (w_k - w_begun), at the server's model w; a client's own state is unchanged, as are models that
    are not sent. The request starts so far from there as the client itself has moved: SCAFFOLD's control is of that."""
    if not staleness or not sends_models(hp):
        return request, result
    discount: float = (1 + staleness) ** -fleet.staleness_exponent

    def move(now: Tensor, begun: Tensor, arrived: Tensor) -> Tensor:
        return (now.double() + discount * (arrived.double() - begun.double())).to(arrived.dtype)

    start = request.start
    weights = move(state["weights"], start.weights, result.weights)
    buffers = result.buffers if hp.batchnorm == "local" else move(state["buffers"], start.buffers, result.buffers)
    if hp.keeps == "head":
        head = federation.layout.mask("head")
        weights[head] = result.weights[head]
    begun = (weights.double() - (result.weights.double() - start.weights.double())).to(weights.dtype)
    moved_request = dataclasses.replace(request, start=dataclasses.replace(start, weights=begun))
    return moved_request, dataclasses.replace(result, weights=weights, buffers=buffers)


def _flights(state: FederatedState) -> list[Flight]:
    pairs = zip(state[ARRIVALS].tolist(), state[IN_FLIGHT].tolist(), strict=True)
    return [Flight(arrives, client, version) for arrives, (client, version) in pairs]


def _in_flight(flying: list[Flight], clock: float) -> FederatedState:
    who = [[flight.client, flight.version] for flight in flying]
    when = [flight.arrives for flight in flying]
    return {
        CLOCK: torch.tensor([clock], dtype=torch.float64),
        IN_FLIGHT: torch.tensor(who, dtype=torch.int64).reshape(-1, 2),
        ARRIVALS: torch.tensor(when, dtype=torch.float64),
    }
