"""Settings nested in those of a federated method: of distillation by the server (``method.server_distillation``) and by
labels (``method.labels``), and of the generator of fedgen (``method.generator``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from knot_runner.config.settings.methods.knot import BiasSettings, LossSettings
from knot_runner.config.settings.methods.terms import Terms
from knot_runner.config.settings.sizes import (
    AT_LEAST_ONE,
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Steps,
    StepsOrNone,
    Width,
)
from knot_runner.config.strict import Holds, require


@dataclass
class ServerDistillation:
    """After averaging, the server trains the global model on unlabeled examples towards what the round's clients say
    of them (FedDF, Lin et al. 2020; ``knot_runner/methods/federated/feddf.md``)."""

    #: as ``method.loss`` of KNOT; not read where there are ``terms``
    loss: LossSettings
    #: of the clients: A (equal), D (by their data), U, E (distance from uniform, from their own bias)
    weighting: str
    #: logits: the clients are one teacher, by the mean of their logits (paper); each: every client is one (KNOT eq. 3)
    ensemble: Literal["logits", "each"]
    #: of ensemble=each: divide by the sum of weights
    normalize: bool
    #: the global model's logits are divided by it
    student_temperature: Positive
    #: the clients' logits are divided by it
    teacher_temperature: Positive
    #: passes over the transfer set in a round
    epochs: Steps
    #: batches in a round instead, of examples drawn for it; null = ``epochs``
    steps: Steps | None
    #: transfer examples of a step
    batch_size: Items
    #: rate of the server's training
    lr: Positive
    #: of the server's training, fresh in every round; adamw (decoupled weight decay) has no momentum
    optimizer: Literal["sgd", "adamw"]
    #: momentum of optimizer=sgd; 0 with adamw
    momentum: FractionOrNone
    #: of the server's training
    weight_decay: NotNegative
    #: rounds of plain averaging before the first that distills
    after: StepsOrNone
    #: from then on, every so many rounds distill
    every: Steps
    #: random examples that show the clients' probability biases B_k
    bias: BiasSettings
    #: of the rate, over the steps of a round: constant, or a cosine that ends at 0
    schedule: Literal["constant", "cosine"]
    #: share of the transfer set that the server does not train on: the weights with the lowest loss there are kept; 0 =
    #: none, and the last are
    valid: FractionOrNone
    #: steps from one look at them to the next
    check: Steps
    #: steps without a lower loss after which the training of a round ends
    patience: Steps
    #: loss terms of ``method=distill`` instead of ``loss``, all but those that read labels: name -> its settings
    terms: Terms = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.terms:
            self._require_of_terms()
        require(
            self.optimizer == "sgd" or not self.momentum,
            "momentum",
            f"{self.momentum} works only with optimizer=sgd. Use 0",
        )

    def _require_of_terms(self) -> None:
        """What terms say themselves, or do not have."""
        for key in ("student_temperature", "teacher_temperature"):
            require(getattr(self, key) == 1, key, "works only with loss; each term has its own temperature. Use 1")
        require(self.ensemble == "logits", "ensemble", "each works only with loss, not with terms. Use logits")
        require(not self.valid, "valid", "works only with loss, not with terms. Use 0")
        for name, options in self.terms.items():
            wrong = "auto weighs by first values, and the averaged model begins near its clients; a number is right"
            require(options.weight != "auto", f"terms.{name}.weight", wrong)

    def distills(self, round: int) -> bool:
        """Whether the server does so in ``round``."""
        return round >= self.after and (round - self.after) % self.every == 0


@dataclass
class LabelDistillation:
    """feddistill: what holds a client near the others' mean logits of each label
    (:mod:`knot_runner.methods.federated.feddistill`)."""

    #: of the regularizer beside the cross-entropy with the true label
    weight: NotNegative
    #: of the mean logits and the client's own in the regularizer, a cross-entropy
    temperature: Positive


@dataclass
class LatentGenerator:
    """A generator of what the last layer reads, given a label, learned from the clients' last layers alone (FedGen,
    Zhu, Hong and Zhou 2021; :mod:`knot_runner.methods.federated.fedgen`)."""

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
    batch_size: Items
    #: rate of the generator's Adam
    lr: Positive
    #: weight decay of the generator's training
    weight_decay: NotNegative
    #: weight of the term that keeps features of different noise apart
    diversity: NotNegative

    def __post_init__(self) -> None:
        require(
            self.batch_size >= 2, "batch_size", f"{self.batch_size} has no spread to normalize by; at least 2 is right"
        )
