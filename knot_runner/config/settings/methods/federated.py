"""Settings of federated learning: the rounds (``training``), and the keys of ``method`` that all algorithms have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from knot_runner.config.settings.sizes import (
    Fraction,
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Proportion,
    ProportionOrNone,
    Steps,
    Temperature,
    UpToMillion,
    require_sgd_momentum,
)
from knot_runner.config.strict import late, require

if TYPE_CHECKING:
    from knot_runner.config.settings.methods.personalization import PersonalizationSettings
    from knot_runner.config.settings.methods.server_distillation import ServerDistillation
    from knot_runner.config.settings.methods.transport import ClusteringSettings
else:  # most runs have none of these
    PersonalizationSettings = late("methods.personalization", "PersonalizationSettings")
    ServerDistillation = late("methods.server_distillation", "ServerDistillation")
    ClusteringSettings = late("methods.transport", "ClusteringSettings")


@dataclass
class FederatedTraining:
    """Rounds and local training (McMahan et al. 2017)."""

    name: str
    #: R: number of rounds
    rounds: Steps
    #: C: number of clients (at most all), share up to 1.0, or all
    clients_per_round: UpToMillion | float | Literal["all"]
    #: E: local epochs per round
    local_epochs: Steps
    #: B: examples per step
    batch_size: Items
    #: eta: local learning rate
    lr: Positive
    #: momentum for optimizer=sgd
    momentum: FractionOrNone
    #: weight decay
    weight_decay: NotNegative
    #: apply weight decay to biases
    decay_biases: bool
    #: drop a client's last incomplete batch
    drop_last: bool
    #: for clients with less than one batch: stop, or allow a smaller batch; null: stop if you or a preset set
    #: ``batch_size``, otherwise allow
    small_clients: Literal["stop", "allow"] | None
    #: target accuracy for rounds-to-target; null disables it
    target: Proportion | None
    #: stop when ``target`` is reached
    stop_at_target: bool
    #: rounds between evaluations; the last round is always evaluated
    evaluate_every: Steps
    #: optimizer, reset each round; adamw has no momentum
    optimizer: Literal["sgd", "adamw"]

    def measures(self, round: int) -> bool:
        """Return whether the models are evaluated after a round. The argument ``round`` is counted from 0."""
        return round + 1 >= self.rounds or (round + 1) % self.evaluate_every == 0

    def __post_init__(self) -> None:
        if self.clients_per_round == "all":
            self.clients_per_round = 1.0
        share = self.clients_per_round
        right = 0 < share <= 1 or (isinstance(share, int) and share > 1)
        problem = "expected a whole number of clients (at least 1) or a share in (0, 1.0]"
        require(right, "clients_per_round", f"{problem}, got {share}")
        require_sgd_momentum(self.optimizer, self.momentum)
        require(not self.stop_at_target or self.target is not None, "target", "required by stop_at_target, but not set")


@dataclass
class Schedule:
    """Changes the temperature from ``method.temperature`` to ``end``."""

    #: interpolation curve (required); step: switch at the end
    shape: Literal["linear", "cosine", "exponential", "step"]
    #: final temperature
    end: Temperature
    #: rounds until ``end``
    rounds: Steps


@dataclass
class Stragglers:
    """Clients with a separate temperature and, optionally, a separate number of epochs."""

    #: share of stragglers
    share: ProportionOrNone
    #: temperature of stragglers
    temperature: Temperature
    #: local epochs of stragglers; null keeps ``training.local_epochs``
    epochs: Steps | None = None
    #: random clients, or the slowest by ``fleet.compute``
    by: Literal["seed", "speed"] = "seed"


@dataclass
class ServerSettings:
    """Server optimizer, applied to the mean client update (Reddi et al. 2021)."""

    #: optimizer; none adds ``lr`` times the update
    optimizer: Literal["none", "momentum", "adam"]
    #: server learning rate; 1 with optimizer=none is plain averaging
    lr: Positive
    #: momentum, or Adam's first-moment decay
    beta1: FractionOrNone
    #: Adam's second-moment decay
    beta2: FractionOrNone
    #: Adam's stabilizer, added to the denominator
    tau: Positive


@dataclass(kw_only=True)
class FederatedSettings:
    """Settings common to all federated methods. Local training divides logits by ``temperature`` (FLex&Chill)."""

    #: the algorithm's :class:`~knot_runner.methods.contract.Method` as ``package.module:NAME``; "" for a plug-in
    functions: ClassVar[str] = ""
    #: whether clients select models on held-out examples, so that ``partition.valid`` has a default
    selects: ClassVar[bool] = False
    #: reason why early rounds depend on the total number of rounds; "" if they do not
    by_all_rounds: ClassVar[str] = ""
    name: str
    #: name of the algorithm
    algorithm: str
    #: average weighted by training examples, or uniform; null: uniform with ``privacy``, otherwise weighted
    aggregation: Literal["weighted", "uniform"] | None
    #: BatchNorm statistics: averaged, kept by each client, or fixed at initialization; null: frozen with ``privacy``,
    #: otherwise averaged
    batchnorm: Literal["averaged", "local", "frozen"] | None
    #: softmax temperature of local training; below 1 is logit chilling
    temperature: Temperature
    #: control experiment: temperature 1 with learning rate lr / temperature
    lr_control: bool
    #: temperature schedule; null keeps it constant
    schedule: Schedule | None = None
    #: clients with different local training; null if none
    stragglers: Stragglers | None = None
    #: temperature for the hardest examples (true-class probability 0 at the start of the round); easier examples
    #: interpolate towards ``temperature``; null uses ``temperature``
    hard_temperature: Temperature | None = None
    #: cluster clients first and train each cluster separately; null disables clustering
    clustering: ClusteringSettings | None = None
    #: training of client models after the last round, by ``kind``; null disables it
    personalization: PersonalizationSettings | None = None

    def __post_init__(self) -> None:
        if not self.chills:  # without chilling, there is nothing to control for
            self.lr_control = False

    @property
    def chills(self) -> bool:
        """Return whether ``temperature`` is not 1, or ``schedule``, ``stragglers`` or ``hard_temperature`` is given."""
        return self.temperature != 1 or (self.schedule, self.stragglers, self.hard_temperature) != (None, None, None)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the name patterns of the shared parameters. By default, all parameters are shared."""
        return ("*",)


@dataclass(kw_only=True)
class AveragingSettings(FederatedSettings):
    """Additional settings of algorithms whose server averages models."""

    #: the patterns to use if ``shared`` is null
    travels: ClassVar[tuple[str, ...]] = ("*",)

    #: patterns of the shared parameters; ``!`` excludes, ``head`` is the last layer; null: all, for FedPer and
    #: FedRep all but the head
    shared: list[str] | None = None
    #: share of an update's entries to send, largest first; null: all
    top_k: Fraction | None = None
    #: server optimizer
    server: ServerSettings
    #: distill the averaged model from the round's clients on unlabeled examples; null disables it
    server_distillation: ServerDistillation | None = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """Return the name patterns of the parameters that the server averages."""
        return self.travels if self.shared is None else tuple(self.shared)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.shared != [], "shared", "expected at least one pattern. Use null to share all parameters")
        whole = self.top_k is None or self.server_distillation is None
        require(whole, "top_k", "not supported with server distillation, which needs whole models. Use null")


def server_distillation(config: FederatedSettings) -> ServerDistillation | None:
    """Return the settings of server distillation; None if the server does not distill."""
    return getattr(config, "server_distillation", None)


def architecture_settings(config: FederatedSettings) -> list[Any]:
    """Return ``method.models``, the settings of the clients' models; [] if all clients use the run's ``model``."""
    return getattr(config, "models", [])
