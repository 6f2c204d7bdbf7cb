"""Shared by terms that compare taps: sums over pairs, means over teachers, and checks of settings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from knot_runner.config.settings.methods.terms import require_batch
from knot_runner.methods.distil.term import NetworkOutputs, TermInputs
from knot_runner.util.errors import UserError, nearest

#: Of each teacher, the (student's tap, teacher's tap) to be compared.
NamedPairs = list[list[tuple[str, str]]]


def mean_over_teachers(
    pairs: NamedPairs,
    student: NetworkOutputs,
    teachers: list[NetworkOutputs],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Mean over teachers of the sum over a teacher's pairs of ``loss(student's tap, teacher's tap)``, [B] or [].

    ``loss`` is called in the order of :func:`compared_taps`.
    """
    sums = []
    for named, teacher in zip(pairs, teachers, strict=True):
        values = [loss(student.taps[own], teacher.taps[other]) for own, other in named]
        sums.append(torch.stack(values).sum(0))
    return torch.stack(sums).mean(0)


def compared_taps(inputs: TermInputs) -> list[tuple[str, Tensor, str, Tensor]]:
    """(student's tap, its features, teacher's tap, its features) of each pair, teacher by teacher."""
    found = []
    for named, teacher in zip(inputs.pairs, inputs.teachers, strict=True):
        for own, other in named:
            found.append((own, inputs.student.taps[own], other, teacher.taps[other]))
    return found


def unit_length(x: Tensor) -> Tensor:
    """``x`` [..., D] over its length; a zero vector stays zero and has a gradient of ordinary size."""
    # F.normalize divides by 1e-12 there: a dead feature would have a gradient 1e12 times too long
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.where(length > 0, 1)


def nothing_to_compare(f: Tensor) -> Tensor:
    """A loss [] of 0 with a gradient of 0 by ``f``, of a batch with too few examples."""
    return (f * 0).sum()


def check_pairs(name: str, inputs: TermInputs) -> None:
    """Raises :class:`UserError` where term ``name`` has no pairs, or one of a tap that a network does not have."""
    for number, (named, teacher) in enumerate(zip(inputs.pairs, inputs.teachers, strict=True), 1):
        if not named:
            raise UserError(f"method.terms.{name}.taps: there is nothing to compare with teacher {number}")
        for own, other in named:
            _check_tap(name, "the student", own, inputs.student)
            _check_tap(name, f"teacher {number}", other, teacher)


def _check_tap(name: str, who: str, tap: str, outputs: NetworkOutputs) -> None:
    if tap not in outputs.taps:
        raise UserError(f"method.terms.{name}.taps: {who} has no tap '{tap}'{nearest(tap, outputs.taps)}")


def check_batch(name: str, inputs: TermInputs) -> None:
    """Raises :class:`UserError` for batches known to have too few examples for term ``name``, where it is 0."""
    if inputs.batch is not None:
        require_batch(name, inputs.batch)
