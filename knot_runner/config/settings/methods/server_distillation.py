"""Settings of distillation on the server (``method.server_distillation``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from knot_runner.config.settings.methods.knot import BiasSettings, LossSettings
from knot_runner.config.settings.methods.terms import Terms
from knot_runner.config.settings.sizes import (
    FractionOrNone,
    Items,
    NotNegative,
    Positive,
    Steps,
    StepsOrNone,
    require_sgd_momentum,
)
from knot_runner.config.strict import require


@dataclass
class ServerDistillation:
    """Server-side distillation from the round's clients (FedDF, Lin et al. 2020)."""

    #: loss, as ``method.loss``; ignored if ``terms`` is set
    loss: LossSettings
    #: client weights: A (equal), D (data size), U (distance from uniform), E (distance from the client's bias)
    weighting: str
    #: average the logits into one teacher (paper), or use each client as a teacher (KNOT eq. 3)
    ensemble: Literal["logits", "each"]
    #: for ensemble=each: divide by the sum of weights
    normalize: bool
    #: temperature of the global model
    student_temperature: Positive
    #: temperature of client models
    teacher_temperature: Positive
    #: passes over the transfer set per round
    epochs: Steps
    #: random batches per round; null uses ``epochs``
    steps: Steps | None
    #: transfer examples per step
    batch_size: Items
    #: learning rate
    lr: Positive
    #: optimizer, reset each round
    optimizer: Literal["sgd", "adamw"]
    #: momentum for optimizer=sgd
    momentum: FractionOrNone
    #: weight decay
    weight_decay: NotNegative
    #: initial rounds without distillation
    after: StepsOrNone
    #: distill once in this number of rounds
    every: Steps
    #: random examples to estimate client bias
    bias: BiasSettings
    #: learning rate schedule within a round; cosine ends at 0
    schedule: Literal["constant", "cosine"]
    #: share of the transfer set for selecting weights; 0 keeps the last weights
    valid: FractionOrNone
    #: steps between validations
    check: Steps
    #: steps without improvement before a round stops
    patience: Steps
    #: loss terms of ``method=distill`` to use instead of ``loss``; must not read labels
    terms: Terms = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_sgd_momentum(self.optimizer, self.momentum)
        if not self.terms:
            return
        # settings that ``terms`` replaces are not set
        for key in ("student_temperature", "teacher_temperature"):
            problem = "not supported with 'terms', which have their own temperatures. Use 1"
            require(getattr(self, key) == 1, key, problem)
        require(self.ensemble == "logits", "ensemble", "'each' is not supported with 'terms'. Use 'logits'")
        require(not self.valid, "valid", "not supported with 'terms', only with 'loss'. Use 0")
        for name, options in self.terms.items():
            wrong = (
                "'auto' is not supported here, since it divides by the initial value of the term, which is "
                "close to 0 for an averaged model. Use a number"
            )
            require(options.weight != "auto", f"terms.{name}.weight", wrong)

    def distills(self, round: int) -> bool:
        """Return whether the server distills in a round. The argument ``round`` is counted from 0."""
        return round >= self.after and (round - self.after) % self.every == 0
