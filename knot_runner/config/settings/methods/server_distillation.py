"""Settings of distillation in federated methods: by the server (``method.distil``), by labels (``method.labels``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from knot_runner.config.settings.methods.knot import BiasSettings
from knot_runner.config.settings.sizes import FractionOrNone, Items, NotNegative, Positive, Steps, StepsOrNone
from knot_runner.config.strict import require, without

#: What came later: at these values a distillation is what it was before; without ``valid`` nothing is checked.
SERVER_DEFAULTS = {"schedule": "constant", "valid": 0}
OF_VALID = ("check", "patience")


@dataclass
class ServerDistillation:
    """After averaging, the server trains the global model on unlabelled examples towards what the round's clients say
    of them (FedDF, Lin et al. 2020; ``knot_runner/methods/federated/feddf.md``)."""

    #: as ``method.loss`` of KNOT
    loss: dict[str, Any]
    #: of the clients: A (equal), D (by their data), U, E (distance from uniform, from their own bias)
    weighting: str
    #: logits: the clients are one teacher, by the mean of their logits (paper); each: every client is one (KNOT eq. 3)
    ensemble: Literal["logits", "each"]
    #: of ensemble=each: divide by the sum of weights
    normalise: bool
    #: the global model's logits are divided by it
    student_temperature: Positive
    #: the clients' logits are divided by it
    teacher_temperature: Positive
    #: passes over the transfer set in a round
    epochs: Steps
    #: batches in a round instead, of examples drawn for it; null = ``epochs``
    steps: Steps | None
    #: transfer examples of a step
    batch: Items
    #: rate of the server's training
    lr: Positive
    #: of the server's training, fresh in every round; adamw (decoupled weight decay) has no momentum
    optimiser: Literal["sgd", "adamw"]
    #: momentum of optimiser=sgd; 0 with adamw
    momentum: FractionOrNone
    #: of the server's training
    weight_decay: NotNegative
    #: rounds of plain averaging before the first that distils
    after: StepsOrNone
    #: from then on, every so many rounds distil
    every: Steps
    #: random examples that show the clients' probability biases B_k
    bias: BiasSettings
    #: of the rate, over the steps of a round: constant, or a cosine that ends at 0
    schedule: Literal["constant", "cosine"] = "constant"
    #: share of the transfer set that the server does not train on: the weights with the lowest loss there are kept; 0 =
    #: none, and the last are
    valid: FractionOrNone = 0.0
    #: steps from one look at them to the next
    check: Steps = 100
    #: steps without a lower loss after which the training of a round ends
    patience: Steps = 1000

    def __post_init__(self) -> None:
        require("name" in self.loss, "loss.name", "is not set")
        require(self.optimiser == "sgd" or not self.momentum, "momentum", f"{self.momentum} is of sgd; adamw has none")

    def distils(self, round: int) -> bool:
        """Whether the server does so in ``round``."""
        return round >= self.after and (round - self.after) % self.every == 0


def used_of_server(distil: dict[str, Any]) -> dict[str, Any]:
    """Returns the plain settings of a server's distillation that enter the run id: all that differ from
    ``SERVER_DEFAULTS``."""
    distil = distil if distil.get("valid") else without(distil, *OF_VALID)
    return without(distil, *(key for key, default in SERVER_DEFAULTS.items() if distil.get(key) == default))


@dataclass
class LabelDistillation:
    """feddistill: what holds a client near the others' mean logits of each label
    (:mod:`knot_runner.methods.federated.feddistill`)."""

    #: of the regulariser beside the cross-entropy with the true label
    weight: NotNegative
    #: cross_entropy: with softmax(mean logits / temperature); l2: mean over classes of squared differences of logits
    form: Literal["cross_entropy", "l2"]
    #: that the mean logits are divided by, of form=cross_entropy
    temperature: Positive
