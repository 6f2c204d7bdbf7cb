"""Settings of a simulated fleet: when clients can be drawn, how long they take, and how long the server waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.checks.fit import Misfit
from knot_runner.config.settings.families import federated_algorithms_where
from knot_runner.config.settings.methods.algorithms import FedPerSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.sizes import FractionOrNone, Positive, Steps
from knot_runner.config.strict import AtMost, Holds, require
from knot_runner.util.errors import UserError

#: Of the logarithm of a speed; exp(6 sigma) is still a number.
LogDeviation = Annotated[float, AtMost(20), Holds(lambda value: value >= 0, "is negative; 0 makes all clients alike")]


@dataclass
class ComputeSettings:
    """Seconds that a client trains on one example: lognormal over clients, ``sigma`` of the logarithm."""

    #: seconds per training example of the median client
    median: Positive
    #: spread of their logarithm over clients
    sigma: LogDeviation


@dataclass
class NetworkSettings:
    """Megabits a second from the server (``down``) and to it (``up``): medians of a lognormal over clients, whose two
    directions are as much faster or slower than the median."""

    #: megabits a second from the server, of the median client
    down: Positive
    #: megabits a second to the server, of the median client
    up: Positive
    #: spread of their logarithm over clients
    sigma: LogDeviation


@dataclass
class AvailabilitySettings:
    """When a client can be drawn: during ``share`` of every ``period`` seconds, from a phase of its own (day and
    night)."""

    #: share of the time that a client can be drawn
    share: Annotated[float, Holds(lambda value: 0 < value <= 1, "is not in (0, 1]")]
    #: seconds of one period
    period: Positive


@dataclass(kw_only=True)
class FleetSettings:
    """A fleet on a virtual clock; its seconds are simulated, not measured."""

    name: str
    #: sync: rounds; async: a server step whenever ``buffer`` updates have arrived (FedBuff)
    mode: Literal["sync", "async"]
    #: how fast clients train
    compute: ComputeSettings
    #: how fast clients send; null = sending takes no time
    network: NetworkSettings | None = None
    #: when clients can be drawn; null = always
    availability: AvailabilitySettings | None = None
    #: probability that a client fails while it works
    dropout: FractionOrNone
    #: sync: seconds after which a round ends; null = when all have arrived
    deadline: Positive | None = None
    #: sync: of those who would be late, drop all work, or take the whole epochs that they finish in time
    late: Literal["drop", "partial"]
    #: async: updates of a server step
    buffer: Steps | None = None
    #: async: an update that is tau server steps old counts (1 + tau) ** -staleness_exponent; 0 = all alike
    staleness_exponent: Annotated[float, AtMost(100), Holds(lambda value: value >= 0, "is negative")]

    def __post_init__(self) -> None:
        if self.mode == "async":
            require(self.buffer is not None, "buffer", "is not set; mode=async needs it")
            require(self.deadline is None, "deadline", "works only with mode=sync. Use null")
            require(self.late == "drop", "late", "partial works only with mode=sync. Use drop")
        else:
            require(self.buffer is None, "buffer", f"{self.buffer} works only with mode=async. Use null")
            require(
                self.late == "drop" or self.deadline is not None, "deadline", "is not set, but late=partial needs it"
            )


def fleet_group(config: dict[str, Any]) -> dict[str, Any] | None:
    """The group ``fleet`` of a composed config, unchecked; None without one, as with ``fleet=none``, which is empty."""
    return config.get("fleet") or None


def check_fleet(fleet: FleetSettings | None, method: Any) -> None:
    """Raises :class:`UserError` where ``method`` does not support ``fleet``."""
    if not isinstance(method, FederatedSettings):
        if fleet is not None:
            problem = f"works only with federated methods, and method={method.name} is not one"
            raise UserError(problem, f"fleet={fleet.name}", hint="Use fleet=none")
        return
    if fleet is None:
        if method.stragglers is not None and method.stragglers.by == "speed":
            raise Misfit("method.stragglers.by: speed is that of a fleet; fleet=phones, or by: seed, would fit")
        return
    if fleet.mode == "async":
        _check_async(method)


def _check_async(method: FederatedSettings) -> None:
    """Raises :class:`UserError` where ``method`` does not support an asynchronous server."""
    if why := method.needs_rounds:
        fits = ", ".join(federated_algorithms_where(lambda algorithm: not algorithm.needs_rounds))
        raise UserError(f"async does not go with method={method.name}, which {why}; {fits} do, or sync", "fleet.mode")
    if isinstance(method, FedPerSettings) and method.final_head_epochs:
        raise UserError(
            "is a last round of all, which fleet.mode=async has not; 0 is right", "method.final_head_epochs"
        )
