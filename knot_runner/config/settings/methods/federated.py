"""Settings of federated learning: rounds (``training``) and the method (``method``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.methods.algorithms import (
    FEDERATED_ALGORITHMS,
    FederatedAlgorithm,
    algorithms_where,
    federated_algorithm,
    own_keys,
)
from knot_runner.config.settings.methods.server_distillation import (
    ApflSettings,
    DittoSettings,
    FedalaSettings,
    FedsoupSettings,
    LabelDistillation,
    LatentGenerator,
    ServerDistillation,
)
from knot_runner.config.settings.methods.transport import ClusteringSettings
from knot_runner.config.settings.sizes import (
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Steps,
    StepsOrNone,
    Temperature,
)
from knot_runner.config.strict import AtMost, Holds, build, require


@dataclass
class FederatedTraining:
    """Rounds and local training (McMahan et al. 2017: C, E, B, eta)."""

    name: str
    #: R: how often clients train and the server averages
    rounds: Steps
    #: clients a round: a number, or a share of all clients up to 1.0 (at least one client)
    participants: Annotated[int, AtMost(10**6)] | float
    #: E: passes of a client over its examples in a round
    epochs: Steps
    #: B: examples of a local step
    batch: Items
    #: eta: rate of local training
    lr: Positive
    #: momentum of optimiser=sgd; 0 with adamw
    momentum: FractionOrNone
    #: weight decay of local training
    weight_decay: NotNegative
    #: whether weight decay also acts on biases
    decay_biases: bool
    #: leave out a client's last, smaller batch
    drop_last: bool
    #: a client smaller than a batch: stop, or train it on one smaller batch and say so
    small_clients: Literal["stop", "allow"]
    #: accuracy that counts as reached (rounds-to-target), of the models in the result's ``evaluated``; null = none
    target: Annotated[float, Holds(lambda value: 0 < value <= 1, "is not in (0, 1]")] | None
    #: end the run in the round that reaches ``target``
    stop_at_target: bool
    #: measure every so many rounds, and always in the last
    evaluate_every: Steps
    #: of local training, fresh in every round; adamw (decoupled weight decay) has no momentum
    optimiser: Literal["sgd", "adamw"] = "sgd"

    def measures(self, round: int) -> bool:
        """Whether the models are measured after ``round``."""
        return round + 1 >= self.rounds or (round + 1) % self.evaluate_every == 0

    def __post_init__(self) -> None:
        share = self.participants
        right = share >= 1 if isinstance(share, int) else 0 < share <= 1
        require(right, "participants", f"{share} is neither a number of clients nor a share of them, up to 1.0")
        require(
            self.optimiser == "sgd" or not self.momentum,
            "momentum",
            f"{self.momentum} works only with optimiser=sgd. Use 0",
        )
        require(not self.stop_at_target or self.target is not None, "target", "is not set, but stop_at_target needs it")


@dataclass
class Schedule:
    """Temperature per round, from ``method.temperature`` to ``end`` over the first ``rounds`` rounds."""

    shape: Literal["linear", "cosine", "exponential", "step"]
    end: Temperature
    rounds: Steps


@dataclass
class Stragglers:
    """A ``share`` of the clients trains at ``temperature``, for ``epochs`` epochs (null: as many as others)."""

    #: share of the clients that are slow
    share: Annotated[float, Holds(lambda value: 0 <= value <= 1, "is not in [0, 1]")]
    #: temperature that the slow ones train at
    temperature: Temperature
    #: local epochs of theirs; null = as many as others
    epochs: Steps | None = None
    #: which: drawn from the seed, or the slowest of the fleet (``fleet.compute``)
    by: Literal["seed", "speed"] = "seed"


@dataclass
class ServerSettings:
    """What the server does with the mean change of a round (Reddi et al. 2021); ``none``: adds ``lr`` times it."""

    #: what turns the round's mean change into the server's step
    optimiser: Literal["none", "momentum", "adam"]
    #: rate of the server's step; 1 with optimiser none is the plain mean
    lr: Positive
    #: momentum; of adam, of the first moment
    beta1: FractionOrNone
    #: of adam's second moment
    beta2: FractionOrNone
    #: adam: added to the root of the second moment
    tau: Positive


@dataclass
class FederatedSettings:
    """A federated method, chilled or not (FLex&Chill: training minimises CE(z / T, y))."""

    name: str
    #: one of those above, or what a plug-in adds to ``METHODS``
    algorithm: str
    #: mean over participants weighted by their images, or uniform
    aggregation: Literal["weighted", "uniform"]
    #: running statistics of BatchNorm: averaged, kept by each client, or frozen at their start
    batchnorm: Literal["averaged", "local", "frozen"]
    #: T of local training; below 1 is logit chilling, 1 is ordinary training
    temperature: Temperature
    #: train at T=1 with rate lr / T instead: what of chilling is a larger step
    lr_control: bool
    #: what the server does with the mean
    server: ServerSettings
    #: of the temperature over the rounds; null = it stays as it is
    schedule: Schedule | None = None
    #: clients that train otherwise than the rest; null = none
    stragglers: Stragglers | None = None
    #: temperature of the hardest samples (probability 0 of the truth at the round's start); easy ones have
    #: ``temperature``, others lie between; null = all alike
    hard_temperature: Temperature | None = None
    #: fedprox: weight of (mu / 2) || w - w_global ||^2
    mu: NotNegative | None = None
    #: fedrep: epochs of the head alone; the body then trains for ``training.epochs`` - head_epochs
    head_epochs: Steps | None = None
    #: last round with all clients: epochs of the head alone; 0 = none (FedWaD's protocol: 10)
    final_head_epochs: StepsOrNone = 0
    #: fedrep, fedper: the head of a client that has not trained yet: its own initial head, as in the papers, or the
    #: mean of the trained heads, as in FedWaD's code
    first_head: Literal["own", "averaged"] = "own"
    #: clients are grouped by the distance of their data first, and each group learns by itself; null = all together
    clustering: ClusteringSettings | None = None
    #: the server distils the averaged model from the round's clients on unlabelled examples; null = it only averages
    distil: ServerDistillation | None = None
    #: feddistill: the regulariser by the others' mean logits of each label
    labels: LabelDistillation | None = None
    #: fedgen: the server's generator of features
    generator: LatentGenerator | None = None
    #: of methods whose clients keep models of their own: the architectures, dealt to clients in turn by number, as
    #: settings of models (a YAML has the names of conf/model); [] = all have ``model``
    models: list[Any] = field(default_factory=list)
    #: settings of algorithm=ditto; null with any other. With it, and those below, clients have models of their own
    ditto: DittoSettings | None = None
    #: settings of algorithm=apfl; null with any other
    apfl: ApflSettings | None = None
    #: settings of algorithm=fedala; null with any other
    fedala: FedalaSettings | None = None
    #: settings of algorithm=fedsoup; null with any other
    fedsoup: FedsoupSettings | None = None
    #: what every client makes of its model after the last round, by ``kind``; null = nothing
    personalisation: Any = None
    #: settings of a plug-in's own method; of the dataclass that it declares, if any
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.algorithm not in FEDERATED_ALGORITHMS:  # a plug-in's that declares nothing: it may read any key
            return
        algorithm = federated_algorithm(self.algorithm)
        if algorithm.options is not None and isinstance(self.options, dict):
            self.options = build(algorithm.options, self.options, "method.options")
        none = f"works only with methods of plug-ins, and algorithm={self.algorithm} is not one"
        require(algorithm.options is not None or not self.options, "options", none)
        distils = self.distil is not None
        require(distils or algorithm.distil != "needed", "distil", f"is not set; {self.algorithm} needs it")
        none = f"{self.algorithm} has no global model that a server could distil; null is right"
        require(not distils or algorithm.distil != "none", "distil", none)
        self._check_own_keys(algorithm)
        plain = f"algorithm={self.algorithm} averages no models; optimiser none is right"
        require(algorithm.averages or self.server.optimiser == "none", "server", plain)
        reason = f"algorithm={self.algorithm} averages models, which must be alike; [] is right"
        require(not self.models or not algorithm.averages, "models", reason)
        if algorithm.keeps != "head":
            owners = " and ".join(algorithms_where(lambda other: other.keeps == "head"))
            require(self.final_head_epochs == 0, "final_head_epochs", f"is of {owners} alone")
            require(self.first_head == "own", "first_head", f"is of {owners} alone")

    def _check_own_keys(self, algorithm: FederatedAlgorithm) -> None:
        """The algorithm's own keys are set, and those that are others' alone are not."""
        for key, names in own_keys().items():
            value = getattr(self, key)
            if key in algorithm.keys:
                require(value is not None, key, f"is not set; {self.algorithm} needs it")
                continue
            owners = " and ".join(f"algorithm={name}" if name == key else name for name in names)
            require(value is None, key, f"is of {owners} alone; algorithm={self.algorithm} has none")
