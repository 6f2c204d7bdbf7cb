"""Settings of fedgen: the server's generator of features, and what it is to the clients (``method.generator``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from knot_runner.config.settings.sizes import AT_LEAST_ONE, Items, NotNegative, Positive, Steps, Width
from knot_runner.config.strict import Holds, require


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
