"""A simulated fleet around a federated method: clients that are slow, away or fail, on a virtual clock."""

from __future__ import annotations

import dataclasses
import functools

from knot_runner.config.settings import FleetSettings
from knot_runner.methods.contract import Method
from knot_runner.methods.federated.fleet import asynchronous, devices, synchronous
from knot_runner.methods.federation import Federation


def on_fleet(method: Method, federation: Federation, fleet: FleetSettings) -> tuple[Method, Federation]:
    """``method`` with the clients of ``fleet``, in rounds or, with mode=async, without; the clients, of known speeds.

    State, beyond the method's: ``fleet/clock`` [1], float64, virtual seconds since the start; more with mode=async.
    Rows, beyond the method's: ``clock`` at the end of the round, how many clients ``dropped`` out, came ``late`` and
    gave ``partial`` work, and the mean ``staleness`` of what was aggregated (None: nothing).
    """
    mode = asynchronous if fleet.mode == "async" else synchronous
    on_clock = dataclasses.replace(
        method,
        init=functools.partial(mode.init, method, fleet),
        plan=functools.partial(mode.plan, method, fleet),
        fold=functools.partial(mode.fold, method, fleet),
        is_finished=functools.partial(mode.is_finished, method, fleet),
    )
    speeds = devices.seconds_per_example(fleet, federation)  # stragglers may be the slowest
    return on_clock, dataclasses.replace(federation, seconds_per_example=speeds)
