"""Settings of single federated algorithms: of those whose clients learn own models during the rounds, and of fedgen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from knot_runner.config.settings.sizes import AT_LEAST_ONE, Depth, Items, NotNegative, Positive, Steps, Width
from knot_runner.config.strict import Holds, require


@dataclass
class DittoSettings:
    """Beside its part of the global model w, a client trains its own v on f(v) + (lam / 2) ||v - w||^2 (Li et al.
    2021)."""

    #: lambda: 0 leaves the client alone with its examples, large values hold v at w
    lam: NotNegative
    #: local epochs of v; null = as many as of w
    epochs: Steps | None = None
    #: rate of v; null = training.lr
    lr: Positive | None = None


@dataclass
class ApflSettings:
    """A client uses alpha v + (1 - alpha) w, v being its own model and w the global one (Deng et al. 2020)."""

    #: at the start of the run
    alpha: Annotated[float, Holds(lambda value: 0 <= value <= 1, "is not in [0, 1]")]
    #: each client moves its alpha by one gradient step a round (their eq. 10)
    adaptive: bool = False


@dataclass
class FedalaSettings:
    """A client trains from its own model moved towards the global one by weights, one per parameter, that it learns on
    its own examples (Zhang et al. 2023)."""

    #: the last so many layers have weights; the others are the global model's (1 = the head alone)
    layers: Annotated[Depth, AT_LEAST_ONE]
    #: of the client's training examples, drawn in every round, that the weights are learnt on
    share: Annotated[float, Holds(lambda value: 0 < value <= 1, "is not in (0, 1]")]
    #: rate that the weights of the mix are learnt at
    rate: Positive
    #: a client's first weights are learnt until the standard deviation of the losses of ``window`` passes is below this
    threshold: Positive
    #: passes whose losses are looked at
    window: Steps
    #: passes at most, of a client's first weights; later ones take one pass
    max_epochs: Steps
    #: what a client uses: the model that it trained last, or this one mixed with the global model of now
    deployed: Literal["trained", "mixed"] = "trained"


@dataclass
class FedsoupSettings:
    """In the later rounds a client mixes what it has trained with global models that it selects on its held-out
    examples (Chen et al. 2023)."""

    #: share of the rounds before the first soup
    start: Annotated[float, Holds(lambda value: 0 <= value < 1, "is not in [0, 1)")]


@dataclass
class LatentGenerator:
    """A generator of what the last layer reads, given a label, learnt from the clients' last layers alone (FedGen, Zhu,
    Hong and Zhou 2021; :mod:`knot_runner.methods.federated.fedgen`)."""

    #: weight of a client's cross-entropy of its head on generated features of any label
    alpha: NotNegative
    #: weight of the divergence of a client's outputs from its head's on generated features of the same label
    beta: NotNegative
    #: both weights, times this in every round
    decay: Annotated[float, Holds(lambda value: 0 < value <= 1, "is not in (0, 1]")]
    #: numbers of noise beside the label
    noise: Annotated[Width, AT_LEAST_ONE]
    #: units of its one hidden layer
    hidden: Annotated[Width, AT_LEAST_ONE]
    #: steps of the generator's Adam in a round
    steps: Steps
    #: generated features of a step
    batch: Items
    #: rate of the generator's Adam
    lr: Positive
    #: weight decay of the generator's training
    weight_decay: NotNegative
    #: weight of the term that keeps features of different noise apart
    diversity: NotNegative

    def __post_init__(self) -> None:
        require(self.batch >= 2, "batch", f"{self.batch} has no spread to normalise by; at least 2 is right")
