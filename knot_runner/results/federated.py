"""Results of federated runs and of clients' personalized models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from knot_runner.config.strict import AtMost, require
from knot_runner.metrics import ACCURACY, METRICS
from knot_runner.results import Amount, ClassNames, Count, Number, RunResult, Share, TrainTest, check_scores


@dataclass(kw_only=True)
class PersonalMeasures:
    """Metrics of each client's model on the client's own test examples (ID) and on other clients' examples (OOD).

    Attributes:
        id_accuracy, id_loss: ID accuracy and loss, averaged over the clients.
        ood_accuracy, ood_loss: OOD accuracy and loss, averaged over the other clients and then over the models.
        ood_weighted: Like ``ood_accuracy``, but each of the other clients is weighted by its number of test examples.
        all_accuracy: Like ``ood_accuracy``, but averaged over all clients, including the model's own client.
        worst_decile: Mean ID accuracy of the 10% of clients with the lowest ID accuracy.
        clients_hurt: Fraction of clients whose model makes at least two more ID errors than a reference model. The
            reference model is the client's model before personalization. Without personalization, the reference model
            is the global model.
        unseen_accuracy: ID accuracy of clients that took part in no round. The other metrics exclude these clients.
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
    """Summary of the similarities between clients, and of the aggregation weights computed from these similarities.

    The similarity of two clients is the cosine of the angle between their label histograms.

    Attributes:
        least, mean: Minimum and mean similarity over pairs of different clients.
        kept: Number of positive aggregation weights of a client, averaged over clients.
        sums: Sum of a client's aggregation weights, averaged over clients.
        leaves: Kinds of data that each client sends.
    """

    least: Amount
    mean: Amount
    kept: Amount
    sums: Amount
    leaves: list[str]


@dataclass(kw_only=True)
class TransferFacts:
    """Summary of the transfer matrix lambda. Entry (k, i) is the weight of client i's update in client k's model.

    Attributes:
        own: Mean weight of a client's own update.
        others: Mean weight of another client's update.
        negative: Fraction of negative weights among the weights of other clients' updates.
        within: Mean entry (k, i) over pairs of different clients k and i in the same group.
        across: Mean entry (k, i) over pairs of clients k and i in different groups.
        auc: Area under the ROC curve when the weights are used to predict whether two clients are in the same group.
        step: Number of gradient-descent steps that led to the deployed matrix.
        scale: Largest eigenvalue of the Gram matrix of the clients' updates.
        leaves: Kinds of data that each client sends.
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

    Attributes:
        step: The number of completed steps. Depending on the method, a step is a checkpoint, a round of averaging, or
            a gradient step.
        epochs: The number of epochs after the last round.
        sgd_steps: The number of optimizer steps after the last round, averaged over clients.
        alpha: The evaluated model is a mix: ``alpha`` times the trained model plus 1 - ``alpha`` times the model after
            the last round.
        phase: Whether the models were trained by clients, or combined from several models.
        valid_accuracy: The accuracy on held-out examples, averaged over clients.
    """

    step: Count
    epochs: Count
    sgd_steps: Amount
    alpha: float
    phase: Literal["trained", "combined"] | None = None
    valid_accuracy: Share | None = None


@dataclass
class Barrier:
    """Loss barrier between a client's model after the last round and the same client's fine-tuned model.

    Let u and v be the weights of the two models, and L(a) the loss of the model with the weights (1 - a) u + a v. The
    barrier is the maximum of L(a) - (1 - a) L(0) - a L(1) over the measured a between 0 and 1.

    Attributes:
        barrier: The barrier of the loss on the client's own test examples.
        barrier_others: The barrier of the loss on other clients' test examples.
    """

    client: Count
    barrier: float
    barrier_others: float


@dataclass(kw_only=True)
class PersonalizationFacts:
    """Results of personalization, which follows the last round.

    Attributes:
        start: Metrics of the models after the last round.
        points: The evaluated points, such as the checkpoints of fine-tuning.
        chosen: The index of the deployed point in ``points``.
        id_at_matched_ood: A dict. A key is an allowed drop of OOD accuracy, in percentage points. The value is the best
            ID accuracy among ``start`` and the points with at most this drop.
        gain_at_matched_ood: The value of ``id_at_matched_ood`` for a drop of 1 percentage point, minus the ID accuracy
            of ``start``.
        area: The hypervolume of the points in the plane of OOD and ID accuracy. The reference point has the OOD
            accuracy of guessing and the ID accuracy of ``start``.
        barrier: The largest ``barrier`` in ``landscape``.
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
    """The highest accuracy of all evaluated rounds, and the number of the first round with this accuracy."""

    accuracy: Share
    round: Count


@dataclass
class ClusterFacts:
    """Clusters of the clients.

    Attributes:
        graph: The kind of similarity graph from which the clusters are computed.
        sizes: The number of clients in each cluster.
        labels: The index of each client's cluster.
        eigenvalues: The eigenvalues of the graph Laplacian.
        ari: The adjusted Rand index between the clusters and the groups of clients in the partition of the data. None
            if there are no groups.
    """

    graph: str
    count: Count
    sizes: list[Number]
    labels: list[int]
    eigenvalues: list[Amount]
    ari: Annotated[float, AtMost(1.0)] | None


@dataclass
class ServerDistilled:
    """Summary of all distillations on the server.

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
    """Facts about all clients with the same model architecture.

    Each client's model is tested on the client's own test examples. ``accuracy`` is the mean over examples, and
    ``unweighted`` is the mean over clients.
    """

    clients: Count
    parameters: Number
    accuracy: Share | None = None
    unweighted: Share | None = None


@dataclass
class FleetFacts:
    """Summary of the simulated fleet of clients.

    Attributes:
        clock: Virtual seconds at the end of the run.
        arrived: Number of updates that arrived at the server.
        dropped: Number of times that a client dropped out of a round.
        late: Number of times that a client missed the deadline of a round.
        partial: Number of arrived updates from clients that completed only some of their epochs.
        empty: Number of rounds in which no update arrived.
        staleness: Number of rounds from a client's receipt of the model to the arrival of the client's update, averaged
            over updates.
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
    """The guarantee of (epsilon, delta)-differential privacy after ``rounds`` rounds.

    Attributes:
        epsilon: Epsilon for the given ``delta``; None if epsilon is infinite.
        neighbors: The neighboring relation for which epsilon is computed.
        rate: The probability that a client takes part in a round.
        accountant: The library that computed epsilon; None without noise.
        clipped: The fraction of updates that were clipped. If clients send only logits, the logits count as updates.
        median_norm: The median norm of the updates before clipping.
        clip_logits: The clipping bound B for logits, if clients send logits. The norm of n rows of logits is at most
            ``B * sqrt(n)``.
        messages: The number of noisy averages per round: 2 if both updates and logits are averaged, otherwise 1.
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
    """Result of a federated run.

    Attributes:
        target: The target accuracy, if one was set.
        rounds_to_target: The number of rounds until the accuracy reached ``target``.
        time_to_target: The virtual seconds until the accuracy reached ``target``, in a run with a simulated fleet.
        valid: Metrics on the examples that clients hold out.
        artifact: Key under which other runs find the stored rounds; None if other runs cannot reuse the rounds.
        unseen: The number of clients that took part in no round. These clients are not counted in ``clients``.
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
