"""Settings of personalization: what is measured of clients' own models, and what follows the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import ItemsOrNone, NotNegative, Positive, Steps
from knot_runner.config.strict import ByTag, Holds, require

#: The largest weight of the personal model that extrapolation may have.
MAX_ALPHA = 3.0


@dataclass
class EvaluateSettings:
    """``matrix``: the model of every client on the test examples of every other, at the ``end``; null = each on its own
    alone."""

    #: when every client's model is measured on all clients' test examples: see above
    matrix: Literal["end"] | None = None


@dataclass(kw_only=True)
class LocalSettings:
    """How clients train after the rounds."""

    #: rate of local training; sgd has no momentum here
    lr: Positive
    #: of local training; adamw is decoupled weight decay
    optimizer: Literal["sgd", "adamw"]
    #: examples of a local step; 0 = ``training.batch_size``
    batch_size: ItemsOrNone

    @property
    def rate(self) -> float:
        """The rate that clients train at."""
        return self.lr


@dataclass(kw_only=True)
class FinetuneSettings(LocalSettings):
    """Every client trains its model of the last round further on its own examples, plainly or held near where it began:
    f_k(theta) + prox ||theta - theta_0||^2 (Ditto's code adds lambda (theta - theta_0) to the gradient:
    lambda = 2 prox).
    """

    kind: Literal["finetune"]
    #: of local training after the last round
    epochs: Steps
    #: the models are measured so many times, after equally many epochs each; the optimizer begins afresh there
    checkpoints: Steps
    #: at a rate so many times smaller, for so many times the epochs
    slower: Steps
    #: weight of the squared distance from where fine-tuning began; 0 = plain
    prox: NotNegative
    #: which of the measured models is deployed: the best on the clients' held-out examples (``partition.valid``), or
    #: the last
    select: Literal["valid", "last"]

    def __post_init__(self) -> None:
        even = self.length % self.checkpoints == 0
        require(even, "checkpoints", f"{self.checkpoints} do not divide the {self.length} epochs into equal parts")

    @property
    def rate(self) -> float:
        """``lr``, or a ``slower`` one."""
        return self.lr / self.slower

    @property
    def length(self) -> int:
        """All epochs."""
        return self.epochs * self.slower

    @property
    def part(self) -> int:
        """Epochs from one save to the next."""
        return self.length // self.checkpoints


@dataclass(kw_only=True)
class SoupSettings(FinetuneSettings):
    """theta(alpha) = (1 - alpha) theta_0 + alpha theta_k between the model of the last round and the fine-tuned one,
    for each of ``alphas``: after the last fine-tuning epoch, or at ``all`` the saved ones."""

    kind: Literal["soup"]
    #: weights of the fine-tuned model, each of which is measured
    alphas: list[float]
    #: mixed after the last fine-tuning epoch, or at every saved one
    at: Literal["last", "all"]
    #: alphas above 1 (and below 0) are meant
    extrapolate: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.alphas) > 0, "alphas", "is empty; [0, 0.5, 1] would be a grid")
        low, high = (-1.0, MAX_ALPHA) if self.extrapolate else (0.0, 1.0)
        outside = [alpha for alpha in self.alphas if not low <= alpha <= high]
        hint = "" if self.extrapolate else "; extrapolate=true allows it"
        require(not outside, "alphas", f"{outside[:1]} is not within [{low:g}, {high:g}]{hint}")


@dataclass(kw_only=True)
class CossimSettings(LocalSettings):
    """theta_k <- sum_i A_ki theta_i over clients whose label histograms have a cosine above ``cutoff``, then ``epochs``
    of local training, ``rounds`` times over, from models trained for as long after the last round."""

    kind: Literal["cossim"]
    #: A_ki is 0 where the cosine is not above it
    cutoff: Annotated[float, Holds(lambda value: 0 <= value < 1, "is not in [0, 1)")]
    #: A: the cosine, or 1, where it is above the cut-off, rows summing to 1; or the cosines as they are
    form: Literal["weighted", "indicator", "unnormalized"]
    #: of aggregation and training
    rounds: Steps
    #: of local training, before the first aggregation and after each
    epochs: Steps
    #: which measured model is deployed: the best on the held-out examples, or the last
    select: Literal["valid", "last"]


@dataclass(kw_only=True)
class TransferMatrixSettings(LocalSettings):
    """W_k = W_0 + sum_i lambda_ki dW_i, dW_i being what ``epochs`` of local training change; lambda is learned by
    gradient descent on the clients' held-out examples (``partition.valid``)."""

    kind: Literal["transfer_matrix"]
    #: epochs of local training, whose change is dW_i
    epochs: Steps
    #: lambda before the first step: theta_0 (zero), fine-tuning (identity), or the mean of all updates (1/K)
    start: Literal["zero", "identity", "mean"]
    #: of lambda's gradient, over the largest eigenvalue of <dW_i, dW_j>
    matrix_lr: Positive
    #: of lambda, by plain gradient descent
    steps: Steps
    #: times the models are measured, after equally many steps each
    checkpoints: Steps
    #: whether lambda may be below 0
    signed: bool
    #: pull of lambda towards its start
    l2: NotNegative
    #: lambda is learned on half of the held-out examples, and that of the lowest loss on the other half is kept
    early_stop: bool
    #: the held-out examples are what lambda is learned on, so they choose nothing
    select: Literal["last"]

    def __post_init__(self) -> None:
        even = self.steps % self.checkpoints == 0
        require(even, "checkpoints", f"{self.checkpoints} do not divide the {self.steps} steps into equal parts")


@dataclass(kw_only=True)
class LandscapeSettings(FinetuneSettings):
    """Loss landscapes of the two clients that gain the most on their held-out examples, in the plane of their
    fine-tuning."""

    kind: Literal["landscape"]
    #: for each of the two the save that the plane goes through, beside theta_0 and the last
    between: list[int]
    #: points along either side of the plane
    grid: Steps
    #: how far the plane goes on beyond the path, as a share of its extent
    margin: NotNegative

    def __post_init__(self) -> None:
        super().__post_init__()
        right = len(self.between) == 2 and all(0 < step < self.checkpoints for step in self.between)
        require(right, "between", f"{self.between} are not two checkpoints before the last, {self.checkpoints}")
        require(self.grid >= 3, "grid", f"{self.grid} points are no plane; at least 3 are right")


#: ``method.personalization.kind`` -> its settings; a plug-in may add its own.
PERSONALIZATION_SETTINGS: dict[str, type] = {
    "finetune": FinetuneSettings,
    "soup": SoupSettings,
    "cossim": CossimSettings,
    "transfer_matrix": TransferMatrixSettings,
    "landscape": LandscapeSettings,
}


#: One of :data:`PERSONALIZATION_SETTINGS`.
PersonalizationSettings = Annotated[Any, ByTag("kind", PERSONALIZATION_SETTINGS, "personalization")]


def shares_models(spec: Any) -> bool:
    """Whether a kind of personalization combines several clients' own models."""
    return isinstance(spec, CossimSettings | TransferMatrixSettings)
