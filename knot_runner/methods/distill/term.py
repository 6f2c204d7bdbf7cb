"""The interface of the loss terms of distillation, and the table of all terms.

A term compares the outputs of the student and its teachers for one batch. To add a term:

1. Write a dataclass of the term's options, and a function ``make(options, inputs)`` that returns the loss function.
2. Register ``TERMS["mine"] = Term(Mine, make)`` in a module that ``plugins`` lists.
3. Set ``+method.terms.mine.weight=1``.

A tap is a point of a network at which an intermediate output is read (:mod:`knot_runner.models.taps`). A term that
compares taps can use :func:`mean_over_teachers` or :class:`PairModules`. Both sum over pairs of taps and average over
teachers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from knot_runner.config.plugins import Table, checked, expect
from knot_runner.config.settings.methods.terms import TERM_SETTINGS
from knot_runner.models.taps import NetworkOutputs

#: The default taps of a term: ``none`` (the term reads only logits), ``features`` (the input of the last layer),
#: ``middle`` or ``last`` (the middle or the last feature map of each network), or ``maps`` (all feature maps).
DefaultTaps = Literal["none", "features", "middle", "last", "maps"]


@dataclass(frozen=True)
class TermBatch:
    """The inputs that a term reads for a batch, in addition to the networks' outputs."""

    #: labels [B]; ``UNLABELED`` for examples without a label
    labels: Tensor
    #: positions [B] of the batch's examples among all training examples of the student
    positions: Tensor
    #: random generator of the epoch, on the CPU, for example for triples and negatives
    draws: torch.Generator
    #: the epoch, counted from 1
    epoch: int = 1


#: For each teacher, the pairs (student's tap, teacher's tap) to compare.
NamedPairs = list[list[tuple[str, str]]]
#: (student's outputs, teachers' outputs without gradients, batch) -> loss of each sample, shape [B], or of the batch, a
#: scalar
TermLoss = Callable[[NetworkOutputs, list[NetworkOutputs], TermBatch], Tensor]
#: (student's features, teacher's features) -> difference of each sample, shape [B], or of the batch, a scalar
TapComparison = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TermInputs:
    """The inputs from which ``Term.make`` builds a loss.

    Attributes:
        student: The student's outputs for a few examples. These outputs define the shapes of the taps.
        teachers: The outputs of each teacher for the same examples.
        pairs: For each teacher, the pairs (student's tap, teacher's tap) to compare.
        examples: The number of the student's training examples.
        points: Coordinates [C, d] of the classes, for transport costs.
    """

    student: NetworkOutputs
    teachers: list[NetworkOutputs]
    pairs: NamedPairs
    examples: int
    points: Tensor


@dataclass(frozen=True)
class Term:
    """A kind of loss term, as registered in :data:`TERMS`.

    ``make(options, inputs)`` returns the unweighted loss as a function or a ``torch.nn.Module``. A module's parameters
    are trained together with the student's parameters. A module's buffers are saved in each checkpoint. Buffers may
    change only in training mode. The loss is called exactly once per step, so it may draw random numbers from
    ``batch.draws``.
    """

    #: dataclass of the settings, including ``weight`` and, if the term reads taps, ``taps``
    options: type
    make: Callable[[Any, TermInputs], TermLoss]
    taps: DefaultTaps = "none"
    #: whether the loss depends on teachers
    needs_teacher: bool = True
    #: whether the loss is 0 for examples without labels
    reads_labels: bool = False


def _accepted(where: str, term: Term) -> Term:
    expect(where, term, Term)
    return replace(term, make=checked(where, term.make, _problem))


def _problem(loss: object, options: Any, inputs: TermInputs) -> str:
    if callable(loss):
        return ""
    return f"{type(loss).__name__} instead of a loss function"


#: All terms, by their names in ``method.terms``.
TERMS: Table[Term] = Table("TERMS", {}, _accepted, lambda term: term.options, TERM_SETTINGS)


def mean_over_teachers(
    pairs: NamedPairs, compare: TapComparison, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch
) -> Tensor:
    """Compare the features at pairs of taps. Return the loss, summed over pairs and averaged over teachers.

    ``compare(student's features, teacher's features)`` returns the loss of one pair. ``compare`` is called in the
    order of :func:`compared_taps`. To get a :data:`TermLoss`, bind ``pairs`` and ``compare``, for example with
    ``functools.partial``.
    """
    sums = []
    for named, teacher in zip(pairs, teachers, strict=True):
        values = [compare(student.taps[student_tap], teacher.taps[other]) for student_tap, other in named]
        sums.append(torch.stack(values).sum(0))
    return torch.stack(sums).mean(0)


def compared_taps(inputs: TermInputs) -> list[tuple[str, Tensor, str, Tensor]]:
    """Return one entry for each compared pair of taps, teacher by teacher.

    Each entry is (student's tap, student's features, teacher's tap, teacher's features).
    """
    compared = []
    for named, teacher in zip(inputs.pairs, inputs.teachers, strict=True):
        for student_tap, other in named:
            compared.append((student_tap, inputs.student.taps[student_tap], other, teacher.taps[other]))
    return compared


class PairModules(nn.Module):
    """A loss with a separate module for each entry of :func:`compared_taps`.

    ``make(f, g)`` creates the module of a pair from the shapes of the student's features f and the teacher's features
    g. ``each[i](f, g, batch)`` returns the loss [B] of entry i of :func:`compared_taps`. Losses are summed over pairs
    and averaged over teachers.
    """

    def __init__(self, inputs: TermInputs, make: Callable[[Tensor, Tensor], nn.Module]) -> None:
        super().__init__()
        self.pairs = inputs.pairs
        self.each = nn.ModuleList(make(f, g) for _, f, _, g in compared_taps(inputs))

    def forward(self, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch) -> Tensor:
        """Return the loss [B] of a batch."""
        modules = iter(self.each)

        def compare(f: Tensor, g: Tensor) -> Tensor:
            loss: Tensor = next(modules)(f, g, batch)
            return loss

        return mean_over_teachers(self.pairs, compare, student, teachers, batch)


def unit_length(x: Tensor) -> Tensor:
    """Return the vectors ``x``, shape [..., D], scaled to norm 1. Zero vectors stay 0; their gradient is finite."""
    # for a zero vector, F.normalize would divide by 1e-12, which makes the gradient 1e12 times too large
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.where(length > 0, 1)


def nothing_to_compare(f: Tensor) -> Tensor:
    """Return a scalar loss of 0 for a batch with too few examples. The gradient with respect to ``f`` is also 0."""
    return (f * 0).sum()
