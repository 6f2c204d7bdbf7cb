"""Rounds of a fleet: the server waits for all that it has drawn, for enough of them, or until a deadline."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass

import torch

from knot_runner.config.settings import FederatedSettings, FleetSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.devices import Simulation
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.methods.messages import with_chosen
from knot_runner.util.errors import UserError

CLOCK = "fleet/clock"


@dataclass(frozen=True)
class FleetRound:
    """A simulated round: the ``requests`` whose results arrive, the ``clock`` at its end, and how many ``dropped`` out,
    came ``late`` (their work is lost) or gave ``partial`` work."""

    requests: list[LocalTraining]
    clock: float
    dropped: int
    late: int
    partial: int


def init(simulated: Simulation, hp: FederatedSettings, federation: Federation) -> FederatedState:
    """Returns the method's initial state at 0 seconds. Raises :class:`UserError` for a deadline that nobody can
    meet."""
    method, fleet = simulated.method, simulated.fleet
    state = {**method.init(hp, federation), CLOCK: torch.zeros(1, dtype=torch.float64)}
    if isinstance(fleet.deadline, float):
        everyone = with_chosen(federation, list(federation.numbers))
        times = simulated.times(hp, state, federation, 0, method.plan(hp, state, everyone, 0))
        least = [time.total if fleet.late == "drop" else time.sending + time.epoch for time in times]
        if least and min(least) > fleet.deadline:
            what = "all of its epochs" if fleet.late == "drop" else "one epoch"
            raise UserError(
                f"{fleet.deadline:g} s are less than the {min(least):.3g} s that the fastest client "
                f"takes for {what}; more than that is right",
                "fleet.deadline",
            )
    return state


def arriving(
    simulated: Simulation, hp: FederatedSettings, state: FederatedState, federation: Federation, round: int
) -> list[LocalTraining]:
    """Returns the method's requests whose results will arrive; lost work is not trained."""
    return fleet_round(simulated, hp, state, federation, round).requests


def pass_time(
    simulated: Simulation, hp: FederatedSettings, before: FederatedState, after: FederatedState,
    federation: Federation, round: int,
) -> Folded:  # fmt: skip
    """Returns the state with the clock at the end of the round."""
    found = fleet_round(simulated, hp, before, federation, round)
    row: RoundRow = {"clock": found.clock, "dropped": found.dropped, "late": found.late, "partial": found.partial}
    row["staleness"] = 0.0 if found.requests else None
    return {**after, CLOCK: torch.tensor([found.clock], dtype=torch.float64)}, row


def is_finished(
    simulated: Simulation, hp: FederatedSettings, state: FederatedState, federation: Federation, round: int
) -> bool:
    """Returns whether the method plans no request for any set of participants."""
    return not simulated.method.plan(hp, state, with_chosen(federation, list(federation.numbers)), round)


def fleet_round(
    simulated: Simulation, hp: FederatedSettings, state: FederatedState, federation: Federation, round: int
) -> FleetRound:
    """Simulates ``round``. Depends only on the seed and the clock, not on training results.

    It ends when all have arrived: failures are known when they happen, late clients are waited for until the deadline.
    """
    method, fleet = simulated.method, simulated.fleet
    began = devices.await_clients(fleet, federation, list(federation.numbers), clock_of(state))
    there = devices.available_clients(fleet, federation, began)
    turns = [client for client in federation.in_turn(round) if there[client]]  # as FedAvg draws
    planned = method.plan(hp, state, with_chosen(federation, turns[: federation.participants]), round)
    asked = devices.by_client(planned)
    times = simulated.times(hp, state, federation, round, planned)
    deadline = _deadline(fleet, times)
    failing = devices.failures(fleet, federation, round)
    requests: list[LocalTraining] = []
    lasted, dropped, late, partial = 0.0, 0, 0, 0
    for (client, own), time in zip(asked.items(), times, strict=True):
        epochs = time.epochs_until(deadline) if fleet.late == "partial" else time.epochs
        is_partial = 0 < epochs < time.epochs
        if is_partial:
            time, own = dataclasses.replace(time, epochs=epochs), devices.shortened_work(own, epochs)
        share = failing[client]
        if share is not None and share * time.total <= deadline:
            dropped += 1
            lasted = max(lasted, share * time.total)
        elif time.total > deadline:
            late += 1
            lasted = deadline
        else:
            partial += is_partial
            lasted = max(lasted, time.total)
            requests += own
    return FleetRound(devices.sent_first(requests), began + lasted, dropped, late, partial)


def _deadline(fleet: FleetSettings, times: list[devices.WorkTime]) -> float:
    """The seconds after which a round ends whose clients take ``times``."""
    if fleet.deadline == "median" and times:
        return statistics.median(time.total for time in times)
    return fleet.deadline if isinstance(fleet.deadline, float) else math.inf


def clock_of(state: FederatedState) -> float:
    """Virtual seconds since the start."""
    return float(state[CLOCK])
