"""Settings of personalization: training of the client models after the last round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from knot_runner.config.plugins import Table
from knot_runner.config.settings.sizes import FractionOrNone, ItemsOrNone, NotNegative, Positive, Steps
from knot_runner.config.strict import ByTag, require

#: Largest weight of the personal model if ``extrapolate`` allows weights above 1.
MAX_ALPHA = 3.0


@dataclass(kw_only=True)
class LocalSettings:
    """Local training after the last round."""

    #: whether the personalization combines models of several clients
    shares_models: ClassVar[bool] = False
    #: whether the personalization learns or selects clients on held-out examples, so that ``partition.valid`` has a
    #: default
    reads_valid: ClassVar[bool] = False
    #: learning rate
    lr: Positive
    #: optimizer; SGD has no momentum
    optimizer: Literal["sgd", "adamw"]
    #: examples per step; 0 uses ``training.batch_size``
    batch_size: ItemsOrNone

    @property
    def rate(self) -> float:
        """Return the learning rate of the clients."""
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
        require(even, "checkpoints", f"expected a divisor of {self.length} (number of epochs), got {self.checkpoints}")

    @property
    def rate(self) -> float:
        """Return the learning rate of the clients: ``lr / slower``."""
        return self.lr / self.slower

    @property
    def length(self) -> int:
        """Return the total number of epochs: ``epochs * slower``."""
        return self.epochs * self.slower

    @property
    def part(self) -> int:
        """Return the number of epochs from one checkpoint to the next."""
        return self.length // self.checkpoints


@dataclass(kw_only=True)
class FinetuneSettings(TuningSettings):
    """Deploys one checkpoint of each client's fine-tuning."""

    kind: str


@dataclass(kw_only=True)
class SoupSettings(TuningSettings):
    """Mixes each client's federated model (weight ``1-alpha``) and fine-tuned model (weight ``alpha``)."""

    kind: str
    #: weights alpha to evaluate
    alphas: list[float]
    #: interpolate with the last checkpoint, or with all
    at: Literal["last", "all"]
    #: allow alphas outside [0, 1]
    extrapolate: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.alphas) > 0, "alphas", "expected a list of at least one number, such as [0, 0.5, 1]")
        low = 0.0
        high = 1.0
        hint = ". To extrapolate, set extrapolate=true"
        if self.extrapolate:
            low = -1.0
            high = MAX_ALPHA
            hint = ""
        outside = [alpha for alpha in self.alphas if not low <= alpha <= high]
        require(not outside, "alphas", f"expected numbers in [{low:g}, {high:g}], got {outside[:1]}{hint}")


@dataclass(kw_only=True)
class CossimSettings(LocalSettings):
    """Alternates local training with averaging weighted by cosine similarities of label histograms."""

    shares_models = True
    kind: str
    #: similarities up to this value count as 0
    cutoff: FractionOrNone
    #: aggregation weights: normalized similarities, equal weights, or raw similarities
    form: Literal["weighted", "indicator", "unnormalized"]
    #: rounds of averaging and training
    rounds: Steps
    #: local epochs, before the first averaging and after each
    epochs: Steps
    #: deployed model: best on held-out examples, or last
    select: Literal["valid", "last"]


#: ``method.personalization.kind`` -> class of the settings. A plug-in may add classes.
PERSONALIZATION_SETTINGS: Table[type] = Table("PERSONALIZATION_SETTINGS", {
    "finetune": FinetuneSettings,
    "soup": SoupSettings,
    "cossim": CossimSettings,
}, papers="settings")  # fmt: skip


#: One of :data:`PERSONALIZATION_SETTINGS`.
PersonalizationSettings = Annotated[Any, ByTag(PERSONALIZATION_SETTINGS, "personalization", "kind")]
