"""What a loss term of a distillation is, and the one table of all terms.

A term compares what the student and its teachers say of one batch. To add one, from anywhere: a dataclass of its
options, a function ``make(options, inputs)`` that returns its loss, and ``TERMS["mine"] = Term(Mine, make)`` in a
module named in ``plugins``; then ``+method.terms.mine.weight=1``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

#: Which of the student's and a teacher's taps a term reads unless it names some: none (the logits are enough), the
#: features that the last layer reads, the middle map or the last one of each network, or all of their maps.
DefaultTaps = Literal["none", "features", "middle", "last", "maps"]


@dataclass(frozen=True)
class NetworkOutputs:
    """What one network says of a batch: ``logits`` [B, C], and by their names the ``taps`` that were asked for, maps
    [B, channels, H, W] or features [B, D]. A teacher's carry no gradient."""

    logits: Tensor
    taps: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TermBatch:
    """What a term may know of a batch beside the networks' outputs."""

    #: [B], -1 = unlabelled
    labels: Tensor
    #: [B], places of the examples among all that the student trains on
    positions: Tensor
    #: of this step, on the CPU: random triples, negatives
    draws: torch.Generator
    #: from 1
    epoch: int = 1


#: (student, teachers, batch) -> loss of each sample [B], or of the batch []
TermLoss = Callable[[NetworkOutputs, list[NetworkOutputs], TermBatch], Tensor]


@dataclass(frozen=True)
class TermInputs:
    """What a term is made from. ``student`` and ``teachers``: what each says of a few examples, for the shapes of their
    taps; ``pairs``: of each teacher the (student's tap, teacher's tap) to be compared; ``examples``: how many the
    student trains on; ``points`` [C, d]: where the classes lie, for transport costs; ``batch``: examples of a step (the
    last of an epoch may have fewer), None where it is not known."""

    student: NetworkOutputs
    teachers: list[NetworkOutputs]
    pairs: list[list[tuple[str, str]]]
    examples: int
    points: Tensor
    batch: int | None = None


@dataclass(frozen=True)
class Term:
    """A term of the loss.

    ``make(options, inputs)`` returns the loss, unweighted. A loss that is a ``torch.nn.Module`` has its parameters
    trained with the student's (adapters) and its buffers committed with them (memories). Memories move in training mode
    only; a loss is called once for each step, for it takes from the batch's draws.
    """

    #: dataclass of its settings; ``weight`` is one of them, and ``taps`` where it reads any
    options: type
    make: Callable[[Any, TermInputs], TermLoss]
    taps: DefaultTaps = "none"
    #: whether it reads what teachers say
    needs_teacher: bool = True


#: Name of a term, as in ``method.terms`` -> what it is.
TERMS: dict[str, Term] = {}
