"""Local training beyond steps on an objective: a function named by a request and run by the plain loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from knot_runner.engine.examples import ClientExamples, InputBatch
from knot_runner.engine.federated.flat import FlatLayout
from knot_runner.engine.objectives import LossRows, SampleLoss

if TYPE_CHECKING:
    from knot_runner.engine.federated.cohort import LocalTraining
    from knot_runner.engine.federated.course import Course


@dataclass(frozen=True)
class LocalResult:
    """The result of local training beside the module's weights: mean loss over all steps, optimiser steps, and a
    program's further results, name -> tensor of any shape."""

    loss: float
    steps: int
    kept: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class LocalWork:
    """Inputs of a program.

    ``model``: the module, with the request's weights and buffers; its final state is the client's result. ``examples``:
    the client's; ``tensors``: the program's, on the module's device.
    """

    request: LocalTraining
    model: nn.Module
    layout: FlatLayout
    examples: ClientExamples
    tensors: dict[str, Tensor]
    #: rows [n] of the training examples -> these examples
    select: Callable[[Tensor], ClientExamples]
    #: the rows and the loss of the request's objective, with ``start_logits`` of the module as it is now
    objective: Callable[[], tuple[LossRows, SampleLoss]]
    #: all epochs of the recipe, in the batches that the request has without a program, too
    batches: Callable[[], Iterator[InputBatch]]
    #: a fresh optimiser of all parameters of a module, by the recipe
    optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    #: put a module into the mode that the recipe trains in
    train_mode: Callable[[nn.Module], None]
    #: the schedule of optimisers over the recipe's steps
    course: Callable[[Iterable[torch.optim.Optimizer]], Course]
    #: the recipe's steps from what the module holds now, as without a program: (mean loss, steps)
    train: Callable[[], tuple[float, int]]


@dataclass(frozen=True)
class LocalProgram:
    """A replacement for the recipe's steps: ``run(settings, work)``.

    ``settings``: plain data; ``tensors``: its inputs beside the request's, name -> tensor of any shape; ``further``:
    epochs beside those of the recipe, for counting costs. Worker processes find ``run`` by its module and name, so it
    stands at the top of a module of the package or of a plug-in.
    """

    run: Callable[[dict[str, Any], LocalWork], LocalResult]
    settings: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    further: float = 0.0
