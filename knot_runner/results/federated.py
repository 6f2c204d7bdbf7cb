"""Results of federated runs and of clients' personalized models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from knot_runner.config.strict import AtMost, require
from knot_runner.metrics import ACCURACY, METRICS
from knot_runner.results import Amount, ClassNames, Count, Number, RunResult, Share, TrainTest, check_scores


@dataclass(kw_only=True)
class PersonalMeasures:
    """Metrics of personalized models on a client's own test examples (ID) and on other clients' examples (OOD).

    Attributes:
        id_accuracy, id_loss: Mean over clients.
        ood_accuracy, ood_loss: For each model, the mean over the other clients; then the mean over all models.
        ood_weighted: Like ``ood_accuracy``, but weighted by the other clients' numbers of test examples.
        all_accuracy: For each model, the mean accuracy over all clients; then the mean over all models.
        worst_decile: Mean ID accuracy of the worst tenth of the clients.
        clients_hurt: Fraction of clients whose model classifies at least two fewer of the client's test examples
            correctly than the model before personalization (without personalization: the global model).
        unseen_accuracy: ID accuracy of clients that took part in no round.
    """

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
    """Cosine similarity of the clients' label histograms.

    Attributes:
        least, mean: Minimum and mean similarity over pairs of clients.
        kept: Number of non-zero aggregation weights of a client, averaged over clients.
        sums: Sum of a client's aggregation weights, averaged over clients.
        leaves: Names of the data that leave a client.
    """

    least: Amount
    mean: Amount
    kept: Amount
    sums: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class TransferFacts:
    """The transfer matrix lambda of the deployed checkpoint, which has the number ``step``.

    ``own`` to ``auc`` summarize the entries of lambda (see ``methods.personalization.combine.matrix_facts``). ``scale``
    is the largest eigenvalue of the Gram matrix of the clients' updates. ``leaves`` names the data that leave a client.
    """

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
    """Metrics of all clients' models at one point of personalization.

    A point is given by the numbers of epochs and optimizer steps (``sgd_steps``) after the last round, and by the
    weight ``alpha`` of the personal model in the interpolation with the model after the last round. ``step`` is the
    number of checkpoints reached. ``phase`` says whether clients trained these models, or whether each model is a
    combination of several models.
    """

    step: Count
    epochs: Count
    sgd_steps: Amount
    alpha: float
    phase: Literal["trained", "combined"] | None = None
    valid_accuracy: Share | None = None


@dataclass
class Barrier:
    """Loss barrier between a client's model after the last round and its fine-tuned model.

    The barrier is the largest height of the loss, along the segment between the two models, above the linear
    interpolation of their losses. ``barrier`` is measured on the client's own test examples, and ``barrier_others`` on
    other clients' test examples.
    """

    client: Count
    barrier: float
    barrier_others: float


@dataclass(kw_only=True)
class PersonalizationFacts:
    """Results of personalization after the last round.

    Attributes:
        start: Metrics of the models after the last round.
        points: The evaluated points, such as checkpoints of fine-tuning; see :class:`PersonalPoint`.
        chosen: The index in the list ``points`` of the point whose models are deployed.
        id_at_matched_ood: A dict from the allowed drop of OOD accuracy (in percentage points) to the best ID accuracy
            with at most this drop.
        gain_at_matched_ood: The gain in ID accuracy over ``start`` with a drop of OOD accuracy of at most 1 percentage
            point.
        area: The area under the curve of ID against OOD accuracy.
    """

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
        require(
            self.chosen < len(self.points),
            "chosen",
            f"expected an index below {len(self.points)}, the number of points, got {self.chosen}",
        )


@dataclass
class BestRound:
    """The highest accuracy of a run, and the number of rounds until the round that reached it."""

    accuracy: Share
    round: Count


@dataclass
class ClusterFacts:
    """Clusters of the clients.

    Attributes:
        labels: The cluster of each client.
        sizes: The number of clients per cluster.
        ari: The adjusted Rand index of the clusters against the groups that the partition planted.
        eigenvalues: The eigenvalues of the graph Laplacian.
    """

    graph: str
    count: Count
    sizes: list[Number]
    labels: list[int]
    eigenvalues: list[Amount]
    ari: Annotated[float, AtMost(1.0)] | None


@dataclass
class ServerDistilled:
    """Summary of the distillations by a server.

    Attributes:
        rounds: Number of rounds with a distillation.
        loss: Loss of the last distillation.
        before, after: Accuracy before and after the last evaluated distillation.
        gain: Mean gain in accuracy over all evaluated distillations.
    """

    rounds: Count
    loss: float
    before: Share | None = None
    after: Share | None = None
    gain: Annotated[float, AtMost(1.0)] | None = None


@dataclass
class ArchitectureFacts:
    """The clients that use one of several architectures, and the accuracy of these clients' models.

    Each model is tested on its client's own test examples. ``accuracy`` is the mean over examples, and ``unweighted``
    is the mean over clients.
    """

    clients: Count
    parameters: Number
    accuracy: Share | None = None
    unweighted: Share | None = None


@dataclass
class FleetFacts:
    """Summary of a simulated fleet.

    Attributes:
        clock: Virtual seconds at the end.
        arrived: Number of updates that arrived.
        partial: Number of arrived updates from clients that completed only some of their epochs.
        staleness: Mean number of server steps between the start and the arrival of an update.
        dropped: Number of clients that dropped out.
        late: Number of clients that were too late.
        empty: Number of rounds without any update.
    """

    clock: Amount
    arrived: Count
    dropped: Count
    late: Count
    partial: Count
    empty: Count
    staleness: Amount | None


@dataclass(kw_only=True)
class PrivacyFacts:
    """The privacy guarantee (epsilon, delta) after ``rounds``. ``epsilon`` is None if infinite.

    ``accountant`` and ``neighbors`` (the neighboring relation) describe how epsilon was computed. ``clipped`` is the
    share of clipped updates, and ``median_norm`` is the median norm before clipping. If clients send logits instead of
    models, ``clipped`` and ``median_norm`` refer to logits, and ``clip_logits`` is the bound on their norm. If the
    server distills, clients send models and logits: ``clip_logits`` applies, too, and each round has two ``messages``.
    """

    epsilon: Amount | None
    delta: Share
    unit: Literal["client"]
    neighbors: Literal["add or remove", "replace"]
    sampling: Literal["poisson", "fixed"]
    rate: Share
    noise_multiplier: Amount
    clip_norm: Amount | None
    rounds: Count
    accountant: str | None
    clipped: Share | None
    median_norm: Amount | None
    clip_logits: Amount | None = None
    messages: Count = 1

    def __post_init__(self) -> None:
        require(self.noise_multiplier > 0 or self.epsilon is None, "epsilon", "expected null, since there is no noise")


@dataclass(kw_only=True)
class FederatedResult(RunResult):
    """A federated run.

    Attributes:
        rounds_to_target: The number of rounds until ``target`` is reached.
        time_to_target: The virtual seconds until ``target`` is reached, with a simulated fleet.
        valid: Metrics on the examples that clients hold out.
        artifact: Key of the artifact in which the rounds are stored. Several runs can share the artifact.
        unseen: The number of clients that took part in no round, in addition to ``clients``.
    """

    datasets: TrainTest = field()
    labels: ClassNames = field()
    rounds: Number
    clients: Number
    best: BestRound
    target: Share | None
    rounds_to_target: Number | None
    clusters: ClusterFacts | None = None
    distilled: ServerDistilled | None = None
    fleet: FleetFacts | None = None
    time_to_target: Amount | None = None
    models: dict[str, ArchitectureFacts] | None = None
    personalization: PersonalizationFacts | None = None
    privacy: PrivacyFacts | None = None
    valid: dict[str, float] | None = None
    artifact: str | None = None
    unseen: Number | None = None
    engine: str = ""
    precision: str = ""
    model: str = ""
    parameters: Count = 0

    def __post_init__(self) -> None:
        for metric in (ACCURACY, *(name for name, metric in METRICS.items() if metric.of_logits)):
            require("ALL" in self.metrics.get(metric, {}), f"metrics.{metric}", "missing")
        check_scores("metrics", self.metrics)
