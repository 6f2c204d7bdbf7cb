"""Settings of a simulated fleet: availability and speed of the clients, and the server's time limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from knot_runner.config.settings.methods.algorithms import FedPerSettings
from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.config.settings.sizes import NOT_NEGATIVE, FractionOrNone, Positive, Proportion, Steps, at_least
from knot_runner.config.strict import AtMost, require

if TYPE_CHECKING:
    from knot_runner.config.settings.run import Settings

#: Standard deviation of the logarithm of a speed. The limit keeps exp(6 sigma) finite.
LogDeviation = Annotated[float, AtMost(20), at_least(0, " (0: all clients are equal)")]


@dataclass
class ComputeSettings:
    """Lognormal training times of clients."""

    #: median seconds per training example
    median: Positive
    #: standard deviation of the log time over clients
    sigma: LogDeviation


@dataclass
class NetworkSettings:
    """Lognormal network speeds. One factor per client scales download and upload."""

    #: median download speed in Mbit/s
    down: Positive
    #: median upload speed in Mbit/s
    up: Positive
    #: standard deviation of the log speed over clients
    sigma: LogDeviation


@dataclass
class AvailabilitySettings:
    """Periodic availability with a random phase per client."""

    #: available share of each period
    share: Proportion
    #: period in seconds
    period: Positive


@dataclass(kw_only=True)
class FleetSettings:
    """Client availability and speed, simulated on a virtual clock."""

    name: str
    #: synchronous rounds, or a server step per ``buffer`` updates (FedBuff)
    mode: Literal["sync", "async"]
    #: training speed
    compute: ComputeSettings
    #: network speed; null: instant transfer
    network: NetworkSettings | None = None
    #: availability of clients; null: always available
    availability: AvailabilitySettings | None = None
    #: probability that a client fails during training
    dropout: FractionOrNone
    #: sync: round time limit in seconds, or the time of the round's median client; null waits for all
    deadline: Positive | Literal["median"] | None = None
    #: sync: drop late clients, or keep their completed epochs (partial)
    late: Literal["drop", "partial"]
    #: async: updates per server step; null: half of the clients that train concurrently
    buffer: Steps | None = None
    #: async: exponent a of the update weight (1 + staleness)^-a; 0 weights all equally
    staleness_exponent: Annotated[float, AtMost(100), NOT_NEGATIVE]

    def __post_init__(self) -> None:
        if self.mode == "async":
            require(self.deadline is None, "deadline", "supported only with mode=sync. Use null")
            require(self.late == "drop", "late", "'partial' requires mode=sync. Use 'drop'")
        else:
            require(self.buffer is None, "buffer", "supported only with mode=async. Use null")
            in_time = self.late == "drop" or self.deadline is not None
            require(in_time, "deadline", "required by late=partial, but not set")

    def check(self, settings: Settings) -> None:
        """Check that the method in ``settings`` supports this fleet.

        Raises:
            UserError: The method does not support the fleet.
        """
        method = settings.method
        if not isinstance(method, FederatedSettings):
            why = "the method has no clients that train in rounds"
            raise settings.misfit("fleet", "method", why, "Use fleet=none")
        if self.mode == "async" and isinstance(method, FedPerSettings) and method.final_head_epochs:
            why = "method.final_head_epochs needs a final round of all clients, but fleet.mode=async has none"
            raise settings.misfit("fleet", "method", why, "Use method.final_head_epochs=0")
