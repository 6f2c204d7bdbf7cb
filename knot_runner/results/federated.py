"""Results of federated runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from knot_runner.config.strict import Between, require
from knot_runner.results.base import (
    Amount,
    ClassNames,
    Count,
    Number,
    RunResult,
    Scores,
    Share,
    TrainTest,
    check_scores,
)
from knot_runner.results.costs import CostFacts
from knot_runner.results.personal import PersonalisationFacts
from knot_runner.results.privacy import PrivacyFacts


@dataclass
class BestRound:
    """The highest accuracy, and rounds trained until then."""

    accuracy: Share
    round: Count


@dataclass
class ClusterFacts:
    """Clusters of the clients: the cluster of each, sizes, adjusted Rand index to planted groups, eigenvalues."""

    graph: str
    count: Count
    sizes: list[Number]
    labels: list[int]
    eigenvalues: list[Amount]
    ari: Annotated[float, Between(-1.0, 1.0)] | None = None
    artefacts: Any = None

    def __post_init__(self) -> None:
        found = [self.labels.count(cluster) for cluster in range(self.count)]
        require(self.sizes == found and sum(found) == len(self.labels), "sizes", "do not fit the labels")


@dataclass
class ServerDistilled:
    """What a server's distillations came to: their number, the loss of the last; accuracy before and after the last
    that was measured, and the mean gain over all that were."""

    rounds: Count
    loss: float
    before: Share | None = None
    after: Share | None = None
    gain: Annotated[float, Between(-1.0, 1.0)] | None = None


@dataclass
class ArchitectureFacts:
    """Clients with models of one architecture of several, and the accuracy of these on their own test examples: by
    examples, and each client alike."""

    clients: Count
    parameters: Number
    accuracy: Share | None = None
    unweighted: Share | None = None


@dataclass
class FleetFacts:
    """A fleet's virtual ``clock`` at the end, in seconds; updates that ``arrived``, after how many server steps on
    average (``staleness``) and how many of them of ``partial`` work; clients that ``dropped`` out or came too ``late``;
    rounds without any update (``empty``)."""

    clock: Amount
    arrived: Count
    dropped: Count
    late: Count
    partial: Count
    empty: Count
    staleness: Amount


@dataclass(kw_only=True)
class FederatedResult(RunResult):
    """A federated run. ``rounds_to_target``: rounds trained until ``target`` is met; ``time_to_target``: virtual
    seconds until then, of a fleet; ``valid``: metrics on the examples that clients hold out;
    ``artefact``: of rounds that runs share; ``unseen``: clients beside the others,
    which took part in no round."""

    metrics: Scores
    datasets: TrainTest
    labels: ClassNames
    rounds: Number
    clients: Number
    best: BestRound
    target: Share | None = None
    rounds_to_target: Number | None = None
    rounds_count: Any = None
    clusters: ClusterFacts | None = None
    distilled: ServerDistilled | None = None
    fleet: FleetFacts | None = None
    time_to_target: Amount | None = None
    costs: CostFacts | None = None
    models: dict[str, ArchitectureFacts] | None = None
    personalisation: PersonalisationFacts | None = None
    privacy: PrivacyFacts | None = None
    valid: dict[str, float] | None = None
    artefact: Any = None
    unseen: Number | None = None
    engine: Any = None
    precision: Any = None
    model: Any = None
    parameters: Any = None

    def __post_init__(self) -> None:
        for metric in ("accuracy", "f1", "loss", "tempered_loss"):
            require("ALL" in self.metrics.get(metric, {}), f"metrics.{metric}", "is not there")
        check_scores("metrics", self.metrics)
        reached = self.rounds_to_target is None or self.rounds_to_target <= self.rounds
        require(reached, "rounds_to_target", f"{self.rounds_to_target} is more than {self.rounds} rounds")
        in_time = self.time_to_target is None or (self.fleet and self.time_to_target <= self.fleet.clock)
        require(bool(in_time), "time_to_target", f"{self.time_to_target} is not on the fleet's clock")
        labels = self.clusters.labels if self.clusters else [0] * self.clients
        require(len(labels) == self.clients, "clusters.labels", f"are not of {self.clients} clients")
