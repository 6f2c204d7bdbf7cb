"""Settings of federated learning: rounds (``training``) and the method (``method``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from knot_runner.config.settings.latent_generator import LatentGenerator
from knot_runner.config.settings.personal_methods import (
    PERSONAL_METHODS,
    ApflSettings,
    DittoSettings,
    FedalaSettings,
    FedsoupSettings,
)
from knot_runner.config.settings.server_distillation import LabelDistillation, ServerDistillation
from knot_runner.config.settings.sizes import (
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Steps,
    StepsOrNone,
    Temperature,
)
from knot_runner.config.settings.transport import ClusteringSettings
from knot_runner.config.strict import AtMost, Holds, require

FEDERATED_ALGORITHMS = (
    "fedavg", "fedprox", "scaffold", "fedgen", "fedrep", "fedper", "feddistill", "fedmd", "local", *PERSONAL_METHODS,
)  # fmt: skip
#: Those in which clients keep models of their own: they exchange logits alone, or nothing.
OWN_MODELS = ("feddistill", "fedmd", "local")


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
    #: accuracy of the global model that counts as reached (rounds-to-target); null = none
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
        require(self.optimiser == "sgd" or not self.momentum, "momentum", f"{self.momentum} is of sgd; adamw has none")
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
    mu: float | None = None
    #: fedrep: epochs of the head alone; the body then trains for ``training.epochs`` - head_epochs
    head_epochs: Annotated[int, AtMost(10**6)] | None = None
    #: last round with all clients: epochs of the head alone; 0 = none (FedWaD's protocol: 10)
    final_head_epochs: StepsOrNone = 0
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
    #: settings of a plug-in's own method
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        own = self.algorithm not in FEDERATED_ALGORITHMS
        require(own or not self.options, "options", f"are of plug-in methods; algorithm={self.algorithm} has none")
        if self.algorithm == "fedprox":
            require(
                self.mu is not None and self.mu >= 0, "mu", f"{self.mu} is not a weight of 0 or more; fedprox needs it"
            )
        elif not own:
            require(self.mu is None, "mu", f"{self.mu} is of fedprox alone; algorithm={self.algorithm} has none")
        if self.algorithm == "fedrep":
            right = self.head_epochs is not None and self.head_epochs >= 1
            require(right, "head_epochs", f"{self.head_epochs} is not at least 1; fedrep needs it")
        elif not own:
            require(self.head_epochs is None, "head_epochs", "is of fedrep alone")
        personal = self.algorithm in ("fedrep", "fedper")
        what = f"is of methods with one global model; with algorithm={self.algorithm} clients have heads of their own"
        require(not personal or self.distil is None, "distil", what)
        self._check_own_models()
        needs = self.algorithm == "fedgen"
        require(not needs or self.generator is not None, "generator", "is not set; fedgen needs it")
        require(own or needs or self.generator is None, "generator", "is of fedgen alone")
        for name in PERSONAL_METHODS:
            given = getattr(self, name) is not None
            require(given or self.algorithm != name, name, f"is not set; {name} needs it")
            require(own or not given or self.algorithm == name, name, f"is of algorithm={name} alone")
        require(own or personal or self.final_head_epochs == 0, "final_head_epochs", "is of fedrep and fedper alone")

    def _check_own_models(self) -> None:
        """Checks settings of methods whose clients keep their own models: required and unavailable ones."""
        if self.algorithm in OWN_MODELS:
            plain = self.server.optimiser == "none"
            require(plain, "server", f"algorithm={self.algorithm} averages no models; optimiser none is right")
        distils, by_labels = self.distil is not None, self.labels is not None
        require(distils or self.algorithm != "fedmd", "distil", "is not set; fedmd needs it")
        for alone in ("feddistill", "local"):
            require(not distils or self.algorithm != alone, "distil", f"is not of {alone}; null is right")
        require(by_labels or self.algorithm != "feddistill", "labels", "is not set; feddistill needs it")
        own = self.algorithm not in FEDERATED_ALGORITHMS
        require(own or not by_labels or self.algorithm == "feddistill", "labels", "is of feddistill alone")
        averages = f"algorithm={self.algorithm} averages models, which must be alike; [] is right"
        require(own or not self.models or self.algorithm in OWN_MODELS, "models", averages)
