"""A simulated fleet around a federated method: clients that are slow, unavailable or fail, in virtual time."""

from __future__ import annotations

import math
from dataclasses import replace

from knot_runner import metrics
from knot_runner.config.settings.fleet import FleetSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.methods.around.fleet import devices
from knot_runner.methods.around.fleet.asynchronous import Asynchronous, as_begun
from knot_runner.methods.around.fleet.synchronous import Synchronous
from knot_runner.methods.contract import ClientMessage, ClientWork, Method, State
from knot_runner.methods.federation import FederatedState, Federation

#: Message parts that are multiplied by the staleness discount, because they hold changes of the model.
DISCOUNTED = ("update", "statistics")


def on_fleet(method: Method, fleet: FleetSettings, federation: Federation) -> tuple[Method, Federation]:
    """Return ``method`` with a simulation of the clients of ``fleet``, and the federation with the clients' speeds.

    With ``mode=async``, the server does not wait for a round's clients (:mod:`asynchronous`).

    The state has an entry in addition to the method's entries: ``fleet/clock`` (float64, shape [1]), the virtual
    seconds since the start. With ``mode=async``, there are further entries (:mod:`asynchronous`). The log has these
    entries in addition to those of the method:

    - ``clock``: the time at the end of the round
    - ``dropped``, ``late``, ``partial``: the number of clients that failed, missed the deadline, or did partial work
    - ``staleness``: the mean staleness of the aggregated updates; None if no update was aggregated
    """
    simulated: Synchronous | Asynchronous = Synchronous(method, fleet)
    if fleet.mode == "async":
        method = discounted(method, fleet)
        simulated = Asynchronous(method, fleet)
    on_clock = replace(
        method,
        init=simulated.init,
        arriving=simulated.arriving,
        pass_time=simulated.pass_time,
        is_finished=simulated.is_finished,
        facts=lambda rounds, rows: method.facts(rounds, rows) | fleet_facts(rows, federation.training.target),
    )
    speeds = devices.seconds_per_example(fleet, federation)  # chilling may use the speeds
    return on_clock, replace(federation, seconds_per_example=speeds)


def discounted(method: Method, fleet: FleetSettings) -> Method:
    """Return ``method`` with updates that are multiplied by (1 + tau)^-a for a staleness of tau rounds."""

    def message(
        config: FederatedSettings, state: FederatedState, federation: Federation, work: ClientWork
    ) -> ClientMessage:
        factor = math.pow(1 + work.round - work.begun, -fleet.staleness_exponent)
        parts = dict(method.message(config, state, federation, work))
        for name in parts.keys() & DISCOUNTED:
            parts[name] = parts[name] * factor
        return parts

    return replace(method, message=message, begun=lambda state, work: as_begun(state, work.begun, work.round))


def fleet_facts(rows: list[State], target: float | None) -> State:
    """Return the entries ``fleet`` and ``time_to_target`` of a result; {} for a run without a simulated fleet.

    ``time_to_target`` is the clock at the first round that reached ``target``. ``fleet`` holds the clock at the end,
    and the number of clients that dropped out, were late, or did partial work.
    """
    if not rows or "clock" not in rows[-1]:
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
