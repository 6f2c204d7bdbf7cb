"""Synchronous rounds on a simulated fleet: the server waits for all sampled clients, or until a deadline.

The deadline is a time in seconds, or the median time that the round's clients need.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import torch

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import LocalTraining
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.devices import Simulation
from knot_runner.methods.contract import by_client
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.util.errors import UserError

#: State entry, of shape [1], with the virtual seconds since the start.
CLOCK = "fleet/clock"


class Synchronous(Simulation):
    """A method with synchronous rounds on a simulated fleet."""

    def init(self, config: FederatedSettings, federation: Federation) -> FederatedState:
        """Return the method's initial state, with the clock at 0 seconds.

        Raises:
            UserError: No client can meet the deadline.
        """
        method = self.method
        fleet = self.fleet
        state = {**method.init(config, federation), CLOCK: torch.zeros(1, dtype=torch.float64)}
        if isinstance(fleet.deadline, float):
            everyone = federation.choosing(federation.numbers)
            times = self.times(config, state, federation, 0, method.plan(config, state, everyone, 0))
            what = "all of its epochs"
            works = list(times.values())
            if fleet.late == "partial":
                what = "one epoch"
                works = [replace(work, epochs=1) for work in works]
            least = min((work.total for work in works), default=0.0)
            if least > fleet.deadline:
                raise UserError(
                    f"{fleet.deadline:g} s is less than the {least:.3g} s that the fastest client "
                    f"needs for {what}. Use a longer deadline",
                    "fleet.deadline",
                )
        return state

    def plan(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> list[LocalTraining]:
        """Return those requests whose results arrive in ``round``. Other requests are not executed."""
        return self.simulate(config, state, federation, round)[0]

    def pass_time(
        self, config: FederatedSettings, before: FederatedState, after: FederatedState,
        federation: Federation, round: int,
    ) -> Folded:  # fmt: skip
        """Return the state at the end of the round, and the log entries of the fleet.

        The state differs from ``after`` only in the clock.
        """
        _, row = self.simulate(config, before, federation, round)
        return {**after, CLOCK: torch.tensor([row["clock"]], dtype=torch.float64)}, row

    def is_finished(self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int) -> bool:
        """Return whether training is over: the method plans no requests for any client in ``round``."""
        return not self.method.plan(config, state, federation.choosing(federation.numbers), round)

    def simulate(
        self, config: FederatedSettings, state: FederatedState, federation: Federation, round: int
    ) -> tuple[list[LocalTraining], RoundRow]:
        """Return those requests whose results arrive in ``round``, and the log entries of the round.

        A round ends when every sampled client has finished or failed, but at the latest at the deadline. Work that is
        not finished by the deadline is lost. With ``late=partial``, a client that would be late stops after the last
        epoch that it can complete in time. The result does not depend on trained weights.

        The log entries are those of :func:`knot_runner.methods.around.fleet.on_fleet`. ``staleness`` is 0, or None if
        no result arrives.
        """
        fleet = self.fleet
        began = devices.await_clients(fleet, federation, list(federation.numbers), float(state[CLOCK]))
        available = devices.available_clients(fleet, federation, began)
        turns = [client for client in federation.in_turn(round) if available[client]]  # in FedAvg's sampling order
        planned = self.method.plan(config, state, federation.choosing(turns[: federation.participants]), round)
        times = self.times(config, state, federation, round, planned)
        deadline = math.inf
        if isinstance(fleet.deadline, float):
            deadline = fleet.deadline
        elif fleet.deadline == "median" and times:
            deadline = statistics.median(time.total for time in times.values())
        failing = devices.failures(fleet, federation, round)
        requests: list[LocalTraining] = []
        lasted = 0.0
        dropped = 0
        late = 0
        partial = 0
        for client, work in by_client(planned).items():
            time = times[client]
            epochs = time.epochs
            if fleet.late == "partial":
                epochs = time.epochs_until(deadline)
            is_partial = 0 < epochs < time.epochs
            if is_partial:
                time = replace(time, epochs=epochs)
                work = devices.shortened_work(work, epochs)
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
                requests += work
        staleness = 0.0 if requests else None
        counts = {"dropped": dropped, "late": late, "partial": partial}
        row: RoundRow = {"clock": began + lasted, **counts, "staleness": staleness}
        return devices.sent_first(requests), row
