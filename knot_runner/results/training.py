"""Results of runs that train: distillation, federated learning, the temperature probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
from knot_runner.results.privacy import PrivacyFacts


@dataclass
class SplitSizes:
    """Examples of one data set; ``role`` of its party."""

    role: str = ""
    train: Amount | None = None
    valid: Amount | None = None
    test: Amount | None = None


@dataclass
class KeptEpoch:
    """The epoch whose weights were kept, and by which rule."""

    epoch: Amount
    select: Literal["best", "last"]


@dataclass
class BoundFacts:
    """The student's loss on distinct training and held-out texts of the transfer set, and what lies between, by itself
    and less that of the model it started from; the bound itself is in ``bound.json``."""

    texts: Number
    train: Amount
    valid: Amount
    gap: float
    gap_less_start: float


@dataclass(kw_only=True)
class DistillationResult(RunResult):
    """KNOT, or its teachers alone. ``before``: the global model before distillation; ``teachers``: each on its own
    test set; ``baselines``: every teacher and their ensemble on the global model's; ``bias``: B_k by teacher [C].
    ``parties``: of mutual learning, whose models ``metrics`` and ``before`` are of, each on its own test set."""

    metrics: Scores
    datasets: dict[str, SplitSizes]
    labels: ClassNames
    before: Scores | None = None
    teachers: Scores | None = None
    baselines: Scores | None = None
    bias: dict[str, list[Amount]] | None = None
    kept_epochs: dict[str, KeptEpoch] | None = None
    bound: BoundFacts | None = None
    costs: CostFacts | None = None
    parties: list[str] | None = None
    selected_epoch: Any = None
    rounds_to_target: Any = None
    rows: Any = None

    def __post_init__(self) -> None:
        require(bool(self.metrics) and bool(self.datasets), "metrics" if not self.metrics else "datasets", "is empty")
        check_scores("metrics", self.metrics)
        check_scores("before", self.before or {})
        for key in ("teachers", "baselines"):
            for name, row in (getattr(self, key) or {}).items():
                check_scores(f"{key}.{name}", {metric: {"": score} for metric, score in row.items()})
        points, classes = self.labels.coordinates, len(self.labels.names)
        require(points is not None and len(points) == classes >= 2, "labels", "has not coordinates for every class")
        require(len({len(point) for point in points}) == 1, "labels", "has coordinates of several lengths")
        for teacher, shares in (self.bias or {}).items():
            require(len(shares) == classes and sum(shares) > 0, f"bias.{teacher}", f"is not of {classes} classes")


@dataclass
class TermFacts:
    """Weight of a term of the loss, and its first ratio to the cross-entropy, weight included."""

    weight: Amount
    ratio: float


@dataclass
class PhaseFacts:
    """A training of the student before the last: its epochs and its terms."""

    epochs: Number
    terms: dict[str, TermFacts]


@dataclass
class ReleasedFacts:
    """What a teacher's owner gave out beside its weights, and how much."""

    kind: str
    floats: Count
    bytes: Count


@dataclass
class SynthesisFacts:
    """Images made from the teacher: how, how many, the last loss, and what they needed to be released."""

    kind: str
    images: Count
    loss: float
    released: ReleasedFacts


@dataclass(kw_only=True)
class DistilResult(DistillationResult):
    """A distillation by loss terms. ``baselines``: every other model that was trained for it, on the student's test
    set."""

    terms: dict[str, TermFacts]
    phases: list[PhaseFacts] | None = None
    synthesis: SynthesisFacts | None = None


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
class PersonalMeasures:
    """Of clients' own models, on their own test examples and on the others'."""

    id_accuracy: Share
    ood_accuracy: Share
    ood_weighted: Share
    all_accuracy: Share
    worst_decile: Share
    id_loss: Amount
    ood_loss: Amount
    clients_hurt: Share | None = None
    unseen_accuracy: Share | None = None


@dataclass(kw_only=True)
class SimilarityFacts:
    """Cosines of clients' label histograms, ``least`` and ``mean`` of two clients; of the aggregation's weights, how
    many a client has that are not 0 and what they come to, in the mean; ``leaves``: what leaves a client."""

    least: Amount
    mean: Amount
    kept: Amount
    sums: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class TransferFacts:
    """The transfer matrix lambda that is deployed, of which ``step``; means of it (``methods.personalisation.
    group_signs``); ``scale``: the largest eigenvalue of the products of updates; ``leaves``: what leaves a client."""

    own: float
    others: float
    negative: Share
    within: float | None = None
    across: float | None = None
    auc: Share | None = None
    step: Count
    scale: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class PersonalPoint(PersonalMeasures):
    """One model of every client: epochs and optimiser steps since the rounds, and weight against the model of then;
    ``phase``: whether clients trained it or it was combined from several."""

    step: Count
    epochs: Count
    sgd_steps: Amount
    alpha: float
    phase: Literal["trained", "combined"] | None = None
    valid_accuracy: Share | None = None


@dataclass
class Barrier:
    """How far the loss rises between a client's model of the last round and its fine-tuned one, above the straight line
    between the two: on its own test examples, and on the others'."""

    client: Count
    barrier: float
    barrier_others: float


@dataclass(kw_only=True)
class PersonalisationFacts:
    """What clients made of their models after the rounds. ``start``: the models of the last round; ``chosen``: the
    number of the point that is deployed; ``id_at_matched_ood``: the best ID accuracy at an OOD accuracy of at most so
    many points less than that of ``start``, and what it gains on ``start`` at 1; ``area``: of the trade-off curve."""

    kind: str
    start: PersonalMeasures
    points: list[PersonalPoint]
    chosen: Count
    id_at_matched_ood: dict[str, Share | None]
    gain_at_matched_ood: Share
    area: Amount
    similarity: SimilarityFacts | None = None
    transfer: TransferFacts | None = None
    landscape: list[Barrier] | None = None
    barrier: float | None = None

    def __post_init__(self) -> None:
        require(self.chosen < len(self.points), "chosen", f"{self.chosen} is not one of {len(self.points)} points")


@dataclass(kw_only=True)
class FederatedResult(RunResult):
    """A federated run. ``rounds_to_target``: rounds trained until ``target`` is met; ``time_to_target``: virtual
    seconds until then, of a fleet; ``artefact``: of rounds that runs share; ``unseen``: clients beside the others,
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


@dataclass(kw_only=True)
class ProbeResult(RunResult):
    """A temperature probe; its arrays are in ``probe.safetensors``."""

    temperatures: list[Amount]
    labels: Any = None
    model: Any = None

    def __post_init__(self) -> None:
        positive = bool(self.temperatures) and min(self.temperatures) > 0
        require(positive, "temperatures", f"{self.temperatures} are not all above 0")
