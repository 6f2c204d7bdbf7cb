"""Settings of personalization: what is measured of clients' own models, and what follows the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from knot_runner.config.settings.sizes import FractionOrNone, ItemsOrNone, NotNegative, Positive, Steps
from knot_runner.config.strict import ByTag, SettingsClasses, require

#: The largest weight of the personal model that extrapolation may have.
MAX_ALPHA = 3.0


@dataclass
class EvaluateSettings:
    """Additional evaluation."""

    #: end: evaluate every client model on every client's test examples after the last round
    matrix: Literal["end"] | None = None


@dataclass(kw_only=True)
class LocalSettings:
    """Local training after the last round."""

    #: learning rate
    lr: Positive
    #: optimizer; SGD has no momentum
    optimizer: Literal["sgd", "adamw"]
    #: examples per step; 0 uses ``training.batch_size``
    batch_size: ItemsOrNone

    @property
    def rate(self) -> float:
        """The rate that clients train at."""
        return self.lr


@dataclass(kw_only=True)
class TuningSettings(LocalSettings):
    """Fine-tunes each client model, optionally with a proximal term."""

    #: local epochs
    epochs: Steps
    #: number of equally spaced evaluations; each resets the optimizer
    checkpoints: Steps
    #: divide the learning rate and multiply the epochs by this factor
    slower: Steps
    #: weight of the squared distance to the starting weights; half of Ditto's lambda
    prox: NotNegative
    #: deployed checkpoint: best on held-out examples (``partition.valid``), or last
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
class FinetuneSettings(TuningSettings):
    """Deploys one of the fine-tuned models."""

    kind: Literal["finetune"]


@dataclass(kw_only=True)
class SoupSettings(TuningSettings):
    """Interpolates between the model theta_0 of the last round and the fine-tuned theta_k: (1 - alpha) theta_0 + alpha
    theta_k."""

    kind: Literal["soup"]
    #: weights alpha to evaluate
    alphas: list[float]
    #: interpolate with the last checkpoint, or with all
    at: Literal["last", "all"]
    #: allow alphas outside [0, 1]
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
    """Alternates local training with averaging weighted by the cosine similarity of label histograms."""

    kind: Literal["cossim"]
    #: similarities up to this value count as 0
    cutoff: FractionOrNone
    #: row weights: normalized similarities, equal weights, or raw similarities
    form: Literal["weighted", "indicator", "unnormalized"]
    #: rounds of averaging and training
    rounds: Steps
    #: local epochs, before the first averaging and after each
    epochs: Steps
    #: deployed model: best on held-out examples, or last
    select: Literal["valid", "last"]


@dataclass(kw_only=True)
class TransferMatrixSettings(LocalSettings):
    """Adds a combination of all client updates to the global model, W_k = W_0 + sum_i lambda_ki dW_i.

    Gradient descent on held-out examples (``partition.valid``) learns lambda.
    """

    kind: Literal["transfer_matrix"]
    #: local epochs that define dW_i
    epochs: Steps
    #: initial lambda: own update (identity), W_0 alone (zero), or mean of all updates
    start: Literal["zero", "identity", "mean"]
    #: learning rate of lambda, relative to the largest eigenvalue of the updates' Gram matrix
    matrix_lr: Positive
    #: gradient steps
    steps: Steps
    #: number of equally spaced evaluations
    checkpoints: Steps
    #: allow negative lambda
    signed: bool
    #: penalty on the distance of lambda from its start
    l2: NotNegative
    #: learn lambda on half of the held-out examples and keep the best on the other half
    early_stop: bool
    #: deployed model; held-out examples already determine lambda
    select: Literal["last"]

    def __post_init__(self) -> None:
        even = self.steps % self.checkpoints == 0
        require(even, "checkpoints", f"{self.checkpoints} do not divide the {self.steps} steps into equal parts")


@dataclass(kw_only=True)
class LandscapeSettings(TuningSettings):
    """Loss landscapes of the two clients that improve most, in the plane of their fine-tuning."""

    kind: Literal["landscape"]
    #: for each of the two clients, the checkpoint that defines the plane
    between: list[int]
    #: grid points per side
    grid: Steps
    #: margin around the path, relative to its extent
    margin: NotNegative

    def __post_init__(self) -> None:
        super().__post_init__()
        right = len(self.between) == 2 and all(0 < step < self.checkpoints for step in self.between)
        require(right, "between", f"{self.between} are not two checkpoints before the last, {self.checkpoints}")
        require(self.grid >= 3, "grid", f"{self.grid} points are no plane; at least 3 are right")


#: ``method.personalization.kind`` -> its settings; a plug-in may add its own.
PERSONALIZATION_SETTINGS: SettingsClasses = {
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
