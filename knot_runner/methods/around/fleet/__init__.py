"""A simulated fleet for any federated method: in virtual time, clients can be slow or unavailable, and can fail."""

from __future__ import annotations

import math
from dataclasses import replace

from knot_runner import metrics
from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import Engine, LocalTraining, Trained
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.asynchronous import Asynchronous, state_at_start
from knot_runner.methods.around.fleet.synchronous import Synchronous
from knot_runner.methods.contract import ClientMessage, ClientWork, Method, RoundMethod, State
from knot_runner.methods.federation import FederatedState, Federation, RoundOutcome, RoundRow
from knot_runner.methods.messages import in_rounds

#: Message parts that are multiplied by the staleness discount, because they hold changes of the model.
DISCOUNTED = ("update", "statistics")


def on_fleet(
    method: Method, config: FederatedSettings, fleet: FleetSettings, federation: Federation
) -> tuple[RoundMethod, Federation]:
    """Return a pair: ``method`` on the simulated ``fleet``, and ``federation`` with the clients' speeds.

    With ``mode=async``, the server does not wait for all clients of a round.

    The state gets the entry ``fleet/clock``, float64 [1]: the virtual seconds since the start. With ``mode=async``, the
    state also gets the entries that :mod:`asynchronous` lists. The log gets these entries:

    - ``clock``: the virtual time in seconds at the end of the round
    - ``dropped``: the number of clients that failed
    - ``late``: the number of clients that missed the deadline
    - ``partial``: the number of clients that trained fewer epochs than requested
    - ``staleness``: the mean staleness (:func:`discounted`) of the aggregated updates; None if there are no updates
    """
    simulated: Synchronous | Asynchronous = Synchronous(method, fleet)
    if fleet.mode == "async":
        method = discounted(method, fleet)
        simulated = Asynchronous(method, fleet)
    rounds = in_rounds(method, config)

    def fold(
        config: FederatedSettings, state: FederatedState, federation: Federation, round: int,
        requests: list[LocalTraining], trained: list[Trained], engine: Engine,
    ) -> RoundOutcome:  # fmt: skip
        after, row, further = rounds.fold(config, state, federation, round, requests, trained, engine)
        after, passed = simulated.pass_time(config, state, after, federation, round)
        return after, {**row, **passed}, further

    on_clock = replace(
        rounds,
        init=simulated.init,
        plan=simulated.plan,
        fold=fold,
        is_finished=simulated.is_finished,
        facts=lambda rounds, rows: method.facts(rounds, rows) | fleet_facts(rows, federation.training.target),
    )
    # Chilling may use the speeds.
    return on_clock, replace(federation, seconds_per_example=devices.seconds_per_example(fleet, federation))


def discounted(method: Method, fleet: FleetSettings) -> Method:
    """Return ``method`` with a discount for stale updates.

    The staleness tau of an update is the number of rounds from the client's receipt of the model to the arrival of the
    update. The update is multiplied by ``(1 + tau) ** -a``, where a is ``fleet.staleness_exponent``.
    """

    def message(
        config: FederatedSettings, state: FederatedState, federation: Federation, work: ClientWork
    ) -> ClientMessage:
        factor = math.pow(1 + work.round - work.start_round, -fleet.staleness_exponent)
        parts = dict(method.message(config, state, federation, work))
        for name in parts.keys() & DISCOUNTED:
            parts[name] = parts[name] * factor
        return parts

    return replace(
        method, message=message, start_state=lambda state, work: state_at_start(state, work.start_round, work.round)
    )


def fleet_facts(rows: list[State], target: float | None) -> State:
    """Return the entries ``fleet`` and ``time_to_target`` of a run's result; {} if ``rows`` is empty.

    ``time_to_target`` is the clock at the end of the first round with an accuracy of at least ``target``; None if there
    is no such round. ``fleet`` is a dict with these values for the whole run:

    - ``clock``: the virtual time in seconds at the end
    - ``arrived``: the number of updates that arrived
    - ``dropped``, ``late``, ``partial``: the sums of the log entries with the same names
    - ``empty``: the number of rounds in which no update arrived
    - ``staleness``: the mean staleness of the updates that arrived; None if no update arrived
    """
    if not rows:
        return {}
    arrived = [len(row["participants"]) for row in rows]
    stale = sum(row["staleness"] * count for row, count in zip(rows, arrived, strict=True) if count)
    facts = {"clock": rows[-1]["clock"], "arrived": sum(arrived)}
    for key in ("dropped", "late", "partial"):
        facts[key] = sum(row[key] for row in rows)
    facts |= {"empty": arrived.count(0), "staleness": None}
    if any(arrived):
        facts["staleness"] = stale / sum(arrived)
    curve = [(row["clock"], row[metrics.ACCURACY]) for row in rows if metrics.ACCURACY in row]
    return {"fleet": facts, "time_to_target": metrics.reached_at(curve, target)}
