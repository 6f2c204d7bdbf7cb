"""Settings of the personalization methods that are compared with soups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from knot_runner.config.settings.methods.personalization import PERSONALIZATION_SETTINGS, LocalSettings, TuningSettings
from knot_runner.config.settings.sizes import NotNegative, Positive, Steps
from knot_runner.config.strict import require


@dataclass(kw_only=True)
class TransferMatrixSettings(LocalSettings):
    """Personalization by a transfer matrix lambda: client k deploys ``W_k = W_0 + sum_i lambda_ki dW_i``.

    W_0 is the model after the last round. dW_i is the update that client i computes by training W_0 on its own
    examples. lambda is learned by gradient descent on held-out examples (``partition.valid``).
    """

    shares_models = True
    reads_valid = True
    kind: Literal["transfer_matrix"]
    #: local epochs that define dW_i
    epochs: Steps
    #: initial lambda: own update (identity) or W_0 alone (zero)
    start: Literal["zero", "identity"]
    #: learning rate of lambda, relative to the largest eigenvalue of the updates' Gram matrix
    matrix_lr: Positive
    #: gradient steps
    steps: Steps
    #: number of equally spaced evaluations
    checkpoints: Steps
    #: allow negative lambda
    signed: bool
    #: learn lambda on half of the held-out examples and keep the best lambda on the other half
    early_stop: bool
    #: deployed model; held-out examples already determine lambda
    select: Literal["last"]

    def __post_init__(self) -> None:
        even = self.steps % self.checkpoints == 0
        require(even, "checkpoints", f"expected a divisor of {self.steps} (number of steps), got {self.checkpoints}")


@dataclass(kw_only=True)
class LandscapeSettings(TuningSettings):
    """Fine-tuning of all clients, and loss landscapes of the two clients whose accuracy improves most.

    A landscape is the loss on the plane in weight space through three models of the client.
    """

    reads_valid = True
    kind: Literal["landscape"]
    #: checkpoint of each client that defines the plane
    between: list[int]
    #: grid points per side
    grid: Steps
    #: margin around the path, relative to its extent
    margin: NotNegative

    def __post_init__(self) -> None:
        super().__post_init__()
        right = len(self.between) == 2 and all(0 < step < self.checkpoints for step in self.between)
        require(right, "between", f"expected two checkpoint indices below {self.checkpoints}, got {self.between}")
        require(self.grid >= 3, "grid", f"{self.grid} points are too few for a plane. Use at least 3")


PERSONALIZATION_SETTINGS.update(transfer_matrix=TransferMatrixSettings, landscape=LandscapeSettings)
