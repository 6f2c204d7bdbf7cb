"""Settings of federated learning: rounds (``training``), and what all algorithms share (``method``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from knot_runner.config.settings.methods.personalization import PersonalizationSettings
from knot_runner.config.settings.methods.server_distillation import ServerDistillation
from knot_runner.config.settings.methods.transport import ClusteringSettings
from knot_runner.config.settings.sizes import (
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Steps,
    Temperature,
)
from knot_runner.config.strict import AtMost, Holds, require


@dataclass
class FederatedTraining:
    """Rounds and local training (McMahan et al. 2017: C, E, B, eta)."""

    name: str
    #: R: how often clients train and the server averages
    rounds: Steps
    #: clients a round: a number, or a share of all clients up to 1.0 (at least one client)
    clients_per_round: Annotated[int, AtMost(10**6)] | float
    #: E: passes of a client over its examples in a round
    local_epochs: Steps
    #: B: examples of a local step
    batch_size: Items
    #: eta: rate of local training
    lr: Positive
    #: momentum of optimizer=sgd; 0 with adamw
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
    optimizer: Literal["sgd", "adamw"]

    def measures(self, round: int) -> bool:
        """Whether the models are measured after ``round``."""
        return round + 1 >= self.rounds or (round + 1) % self.evaluate_every == 0

    def __post_init__(self) -> None:
        share = self.clients_per_round
        right = share >= 1 if isinstance(share, int) else 0 < share <= 1
        require(right, "clients_per_round", f"{share} is neither a number of clients nor a share of them, up to 1.0")
        require(
            self.optimizer == "sgd" or not self.momentum,
            "momentum",
            f"{self.momentum} works only with optimizer=sgd. Use 0",
        )
        require(not self.stop_at_target or self.target is not None, "target", "is not set, but stop_at_target needs it")


@dataclass
class Schedule:
    """Temperature per round, from ``method.temperature`` to ``end`` over the first ``rounds`` rounds."""

    #: curve between both temperatures; ``step`` switches after ``rounds``
    shape: Literal["linear", "cosine", "exponential", "step"]
    #: final temperature
    end: Temperature
    #: rounds until ``end``
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
    optimizer: Literal["none", "momentum", "adam"]
    #: rate of the server's step; 1 with optimizer none is the plain mean
    lr: Positive
    #: momentum; of adam, of the first moment
    beta1: FractionOrNone
    #: of adam's second moment
    beta2: FractionOrNone
    #: adam: added to the root of the second moment
    tau: Positive


@dataclass(kw_only=True)
class FederatedSettings:
    """A federated method, chilled or not (FLex&Chill: training minimizes CE(z / T, y))."""

    #: :class:`~knot_runner.methods.contract.Method` of the algorithm, as ``package.module:NAME``; "" = a plug-in's
    functions: ClassVar[str] = ""
    #: whether the server averages models; otherwise clients have models of their own
    averages: ClassVar[bool] = False
    #: what a client resumes from as it has trained it, however old the model that it began with
    keeps: ClassVar[Literal["nothing", "head", "model"]] = "nothing"
    #: why the server cannot update while clients still train; "" = it can, with ``sends`` as it is
    needs_rounds: ClassVar[str] = "is not known to go without rounds"
    #: what of its state clients are sent, by name or by a prefix that ends with "/": kept for those still training
    sends: ClassVar[tuple[str, ...]] = ()
    #: why privacy does not cover what clients send; "" = it does: each client sends one model, which is averaged, and
    #: nothing else, or the algorithm's own fold clips all that they send
    not_private: ClassVar[str] = "are not known to send one model each and nothing else, and only that is clipped"
    #: whether clients send logits instead of models
    sends_logits: ClassVar[bool] = False
    #: whether clients keep control variates, whose changes they send along with their models
    controls: ClassVar[bool] = False
    #: whether clients choose on held-out examples, so that ``partition.valid`` has a default
    selects: ClassVar[bool] = False
    #: why its first rounds depend on how many there are; "" = they do not
    by_all_rounds: ClassVar[str] = ""
    name: str
    #: name of the algorithm
    algorithm: str
    #: mean over participants weighted by their images, or uniform
    aggregation: Literal["weighted", "uniform"]
    #: running statistics of BatchNorm: averaged, kept by each client, or frozen at their start
    batchnorm: Literal["averaged", "local", "frozen"]
    #: T of local training; below 1 is logit chilling, 1 is ordinary training
    temperature: Temperature
    #: train at T=1 with rate lr / T instead: what of chilling is a larger step
    lr_control: bool
    #: of the temperature over the rounds; null = it stays as it is
    schedule: Schedule | None = None
    #: clients that train otherwise than the rest; null = none
    stragglers: Stragglers | None = None
    #: temperature of the hardest samples (probability 0 of the truth at the round's start); easy ones have
    #: ``temperature``, others lie between; null = all alike
    hard_temperature: Temperature | None = None
    #: clients are grouped by the distance of their data first, and each group learns by itself; null = all together
    clustering: ClusteringSettings | None = None
    #: what every client makes of its model after the last round, by ``kind``; null = nothing
    personalization: PersonalizationSettings | None = None

    def __init_subclass__(cls) -> None:
        """A class promises only what it states itself: it may send more than its base does."""
        for promise in ("needs_rounds", "not_private"):
            if promise not in cls.__dict__:
                setattr(cls, promise, getattr(FederatedSettings, promise))

    def __post_init__(self) -> None:
        chilled = (self.schedule, self.stragglers, self.hard_temperature) != (None, None, None)
        if self.temperature == 1 and not chilled:  # there is no temperature to train without
            self.lr_control = False

    @classmethod
    def remembers(cls) -> bool:
        """Whether what a client sends depends on the rounds that it took part in before, by what it has kept."""
        return cls.controls or cls.keeps != "nothing" or not cls.averages


@dataclass(kw_only=True)
class AveragingSettings(FederatedSettings):
    """An algorithm whose server averages the clients' models."""

    averages = True
    sends = ("weights", "buffers")

    #: what the server does with the mean
    server: ServerSettings
    #: the server distills the averaged model from the round's clients on unlabeled examples; null = it only averages
    server_distillation: ServerDistillation | None = None


def server_distillation(hp: FederatedSettings) -> ServerDistillation | None:
    """Return the settings of the distillation by the server; None where it does not distill."""
    return getattr(hp, "server_distillation", None)


def architecture_settings(hp: FederatedSettings) -> list[Any]:
    """Return the settings of the clients' models; [] where all have the run's ``model``."""
    return getattr(hp, "models", [])
