"""The engines' interface: requests (a client's local training, inference) and results. Plain data.

Beside :mod:`knot_runner.engine.requests`, whose words they share, since these carry their tensors to the engine: a
round asks for thousands, each is answered once, and none is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

from knot_runner.engine.examples import Augment
from knot_runner.engine.federated.local_program import LocalProgram
from knot_runner.engine.objectives import Objective

#: Examples per inference request: fixed, so that logits do not depend on the number of workers.
INFERENCE_ROWS = 512
#: The same where many models are asked about the same examples, of which more then pay.
ROWS_OF_MANY = 1024


def silent(text: str) -> None:
    """Print nothing."""


@dataclass(frozen=True)
class ClientModel:
    """Flat weights [P] and buffers [Q] (``engine.federated.flat``; running statistics, empty without BatchNorm)."""

    weights: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class Phase:
    """A number of epochs over the client's rows that train all parameters, the head alone, or all but the head."""

    epochs: int
    trains: Literal["all", "head", "body"] = "all"


@dataclass(frozen=True)
class Recipe:
    """How a client trains: ``optimiser`` on mean_i loss_i + (proximal / 2) || w - w_start ||^2, by its objective.

    It is what a method makes of settings for one client and one round (a rate from a temperature, phases, a pull to the
    start) and is kept nowhere. A stage's :class:`~knot_runner.config.settings.StageSettings` are what a user writes, as
    they stand in the stage's key: the two share optimiser, rate, batch and decay, and nothing around them.


    ``cosine``: the rate of step t of T is lr (1 + cos(pi t / T)) / 2, T being all steps that there may be. ``check``,
    ``patience``: of a request with held-out rows (:class:`LocalTraining`)."""

    phases: tuple[Phase, ...]
    batch: int
    drop_last: bool
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    decay_biases: bool = True
    proximal: float = 0.0
    frozen_statistics: bool = False
    augment: Augment = "none"
    optimiser: Literal["sgd", "adamw"] = "sgd"
    cosine: bool = False
    check: int = 0
    patience: int = 0


@dataclass(frozen=True)
class LocalTraining:
    """One client's work in one round.

    ``start``: the model that it begins with, in the dtype to compute in; requests of a round may share it. ``rows`` [n]
    int64 into the training examples; ``test_rows`` [m] into the test examples, on which the model is measured before
    and after training. ``control`` [P], if given, is added to every gradient (SCAFFOLD). ``inputs``: what the objective
    reads of each row, name -> [n, ...]. ``exchanged``: it is taught after the round's fold, by an optimiser that is not
    the clients'. ``cluster``: of several that learn side by side, which this is for; engines do not read it.
    ``network``: which of the engine's networks it is of. ``held``: so many of the last rows are not trained on; their
    mean loss is taken every ``recipe.check`` steps, ``recipe.patience`` steps without a lower one end the training, and
    the weights with the lowest come back. ``program``: what is done in the place of the recipe's steps; the plain loop
    does it in every engine.
    """

    client: int
    round: int
    seed: int
    start: ClientModel
    rows: Tensor
    test_rows: Tensor
    recipe: Recipe
    control: Tensor | None = None
    objective: Objective = field(default_factory=Objective)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    exchanged: bool = False
    cluster: int = 0
    network: int = 0
    held: int = 0
    program: LocalProgram | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is SGD at one rate, to the end, on a loss of the logits alone: what engines do by hand or as a
        stack; the rest is the plain loop's."""
        steady = self.recipe.optimiser == "sgd" and not self.recipe.cosine
        return steady and not self.held and not self.objective.reads_head and self.program is None


@dataclass(frozen=True)
class Trained:
    """What a client returns: weights [P], buffers [Q], steps taken, mean training loss over all steps (as minimised,
    without the proximal term), how many of its test examples were right ``before`` and ``after``, and whether its
    weights are ``finite`` (checked where it trained: there they are in the cache, and workers check in parallel).
    ``kept``: what a program returns beside them."""

    client: int
    weights: Tensor
    buffers: Tensor
    steps: int
    loss: float
    before: int
    after: int
    finite: bool
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def model(self) -> ClientModel:
        """The trained model."""
        return ClientModel(self.weights, self.buffers)


@dataclass(frozen=True)
class Inference:
    """Logits of ``rows`` [n] of the test examples (or training examples) under one ``model``, of the engine's network
    of that number; ``cluster``: as of :class:`LocalTraining`.

    ``many``: other models are asked about these rows, too, so that an engine may do what depends on the rows alone once
    for all of them, which changes rounding; ``body``: of models that differ in their heads alone, the same text for
    all, which no other body has, so that an engine may compute what the heads read once, to the same bits."""

    model: ClientModel
    rows: Tensor
    split: Literal["test", "train"] = "test"
    cluster: int = field(default=0, kw_only=True)
    network: int = field(default=0, kw_only=True)
    many: bool = field(default=False, kw_only=True)
    body: str = field(default="", kw_only=True)


class Engine(Protocol):
    """Trains cohorts and infers. Results do not depend on the order of requests, nor on workers or chunks."""

    name: str
    device: torch.device

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; results in the same order, on the CPU."""
        ...

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Logits [n, classes] of every request, on the CPU, in evaluation mode."""
        ...

    def close(self) -> None:
        """End worker processes and free memory."""
        ...
