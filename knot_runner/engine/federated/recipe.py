"""How a client trains: its recipe, and the schedule of a training: a cosine learning rate, early stopping on held-out
examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import Augment


@dataclass(frozen=True)
class Phase:
    """A number of epochs over the client's rows that train all parameters, the head alone, or all but the head."""

    epochs: int
    trains: Literal["all", "head", "body"] = "all"


@dataclass(frozen=True)
class Recipe:
    """How a client trains: ``optimizer`` on mean_i loss_i + (proximal / 2) || w - w_start ||^2, by its objective.

    It is what a method makes of settings for one client and one round (a rate from a temperature, phases, a pull to the
    start) and is kept nowhere. A stage's :class:`~knot_runner.config.settings.StageSettings` are what a user writes, as
    they stand in the stage's key: the two share optimizer, rate, batch and decay, and nothing around them.

    ``cosine``: the rate of step t of T is lr (1 + cos(pi t / T)) / 2, T being the maximum number of steps. ``check``,
    ``patience``: of a request with held-out rows (:class:`~knot_runner.engine.federated.cohort.LocalTraining`)."""

    phases: tuple[Phase, ...]
    batch_size: int
    drop_last: bool
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = True
    proximal: float = 0.0
    frozen_statistics: bool = False
    augment: Augment = "none"
    optimizer: Literal["sgd", "adamw"] = "sgd"
    cosine: bool = False
    check: int = 0
    patience: int = 0


def cosine_rate(lr: float, step: int, steps: int) -> float:
    """lr (1 + cos(pi t / T)) / 2 of step t of T, from 0."""
    return lr * (1 + math.cos(math.pi * step / steps)) / 2


class Course:
    """Schedule of ``model`` over at most ``steps`` steps of ``optimizers``, by ``recipe``. ``held_loss()``: that of
    held-out examples, if any, which is checked before the first step and after the last, too."""

    def __init__(
        self, model: nn.Module, recipe: Recipe, optimizers: Iterable[torch.optim.Optimizer], steps: int,
        held_loss: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._model, self._recipe, self._optimizers, self._steps = model, recipe, list(optimizers), steps
        self._loss, self._best, self._best_step = held_loss, math.inf, 0
        self._kept: dict[str, Tensor] = {}
        if held_loss is not None:
            self._check(0)

    def ends(self, step: int) -> bool:
        """Returns whether training ends after ``step`` steps; the model is then restored to the best one checked."""
        if self._recipe.cosine:
            for optimizer in self._optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = cosine_rate(self._recipe.lr, step, self._steps)
        is_last = step == self._steps
        if self._loss is None or (step % self._recipe.check and not is_last):
            return False
        self._check(step)
        if step - self._best_step < self._recipe.patience and not is_last:
            return False
        self._model.load_state_dict(self._kept)
        return True

    def _check(self, step: int) -> None:
        found = self._loss()
        if found < self._best:
            self._best, self._best_step = found, step
            self._kept = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
