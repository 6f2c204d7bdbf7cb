"""Hints: the student's intermediate features, through a trained adapter, match the teacher's (FitNets, Romero 2015)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.terms import HintTermSettings
from knot_runner.methods.distil.term import (
    TERMS,
    NetworkOutputs,
    Term,
    TermBatch,
    TermInputs,
    check_pairs,
    compared_taps,
    mean_over_teachers,
)
from knot_runner.util.errors import UserError


def make_adapter(own: torch.Size, other: torch.Size, always: bool) -> nn.Module:
    """A layer from features of shape ``own`` to shape ``other``: [B, channels, H, W] both, or [B, D] both.

    Identity where the shapes are the same (unless ``always``), a linear layer for vectors, a 1x1 convolution where
    only channels differ, a strided or a transposed one where sizes do. Raises ``ValueError`` where there is none.
    """
    if len(own) != len(other):
        raise ValueError("one is a map, the other a vector")
    if own[1:] == other[1:] and not always:
        return nn.Identity()
    if len(own) == 2:
        return nn.Linear(own[1], other[1])
    sides = list(zip(own[2:], other[2:], strict=True))
    if all(side >= wanted for side, wanted in sides):
        return _shrinking(own[1], other[1], sides)
    if all(side <= wanted for side, wanted in sides):
        return _growing(own[1], other[1], sides)
    raise ValueError("one is higher, the other wider")


def _shrinking(channels: int, wanted: int, sides: list[tuple[int, int]]) -> nn.Conv2d:
    """A convolution to smaller or equal sides: with a stride where one is a multiple of the other (3x3, stride 2 and
    padding 1 for a half), else with a kernel as large as the difference requires."""
    kernels, strides, paddings = [], [], []
    for side, smaller in sides:
        whole = side % smaller == 0
        stride = side // smaller if whole else 1
        strides.append(stride)
        paddings.append(stride - 1)
        kernels.append(2 * stride - 1 if whole else side - smaller + 1)
    return nn.Conv2d(channels, wanted, tuple(kernels), tuple(strides), tuple(paddings))


def _growing(channels: int, wanted: int, sides: list[tuple[int, int]]) -> nn.ConvTranspose2d:
    """A transposed convolution to larger or equal sides, as :func:`_shrinking` (4x4, stride 2, padding 1 to double)."""
    kernels, strides, paddings = [], [], []
    for side, larger in sides:
        whole = larger % side == 0
        stride = larger // side if whole else 1
        strides.append(stride)
        paddings.append(stride // 2)
        kernels.append(stride + 2 * (stride // 2) if whole else larger - side + 1)
    return nn.ConvTranspose2d(channels, wanted, tuple(kernels), tuple(strides), tuple(paddings))


def squared_difference(f: Tensor, g: Tensor) -> Tensor:
    """Mean over an example's elements of (f - g)^2, [B]."""
    return (f - g).square().flatten(1).mean(1)


def absolute_difference(f: Tensor, g: Tensor) -> Tensor:
    """Mean over an example's elements of |f - g|, [B]."""
    return (f - g).abs().flatten(1).mean(1)


def channel_cross_entropy(f: Tensor, g: Tensor) -> Tensor:
    """-sum over channels of softmax(g) log softmax(f), mean over positions, [B]; of vectors over their features."""
    return -(g.softmax(1) * F.log_softmax(f, 1)).sum(1).flatten(1).mean(1)


_FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l2": squared_difference,
    "l1": absolute_difference,
    "ce": channel_cross_entropy,
}


class HintLoss(nn.Module):
    """Difference [B] of the adapted student's taps and the teachers', summed over pairs, mean over teachers.

    An adapter of its own for each pair of each teacher, with initial weights from torch's current seed.
    """

    def __init__(self, options: HintTermSettings, inputs: TermInputs) -> None:
        super().__init__()
        self.pairs = inputs.pairs
        self.form = options.form
        self.adapters = nn.ModuleList(_adapter(options, *compared) for compared in compared_taps(inputs))

    def forward(self, student: NetworkOutputs, teachers: list[NetworkOutputs], batch: TermBatch) -> Tensor:
        difference = _FORMS[self.form]
        adapters = iter(self.adapters)

        def adapted_difference(f: Tensor, g: Tensor) -> Tensor:
            return difference(next(adapters)(f), g)

        return mean_over_teachers(self.pairs, student, teachers, adapted_difference)


def _adapter(options: HintTermSettings, own: str, f: Tensor, other: str, g: Tensor) -> nn.Module:
    try:
        made = make_adapter(f.shape, g.shape, options.adapter == "always")
    except ValueError as problem:
        shapes = ["x".join(map(str, tensor.shape[1:])) for tensor in (f, g)]
        raise UserError(
            f"method.terms.hint.taps: no adapter from the student's '{own}' ({shapes[0]}) to the teacher's '{other}' "
            f"({shapes[1]}): {problem}"
        ) from None
    return made.to(f)


def _make_hint(options: HintTermSettings, inputs: TermInputs) -> HintLoss:
    check_pairs("hint", inputs)
    return HintLoss(options, inputs)


TERMS["hint"] = Term(HintTermSettings, _make_hint, taps="middle")
