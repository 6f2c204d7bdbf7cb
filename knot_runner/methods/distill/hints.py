"""Hints: an adapter maps the student's intermediate features to a teacher's features (FitNets, Romero et al. 2015)."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.terms import HintTermSettings
from knot_runner.methods.distill.term import TERMS, PairModules, Term, TermBatch
from knot_runner.util.errors import UserError


def make_adapter(from_shape: torch.Size, other: torch.Size, always: bool) -> nn.Module:
    """Return a layer that maps features of shape ``from_shape`` to features of shape ``other``.

    Both shapes are [B, channels, H, W], or both are [B, D]. If the shapes are equal and ``always`` is false, the layer
    is the identity. Otherwise, the type of the layer depends on the shapes:

    - vectors: a linear layer
    - maps of the same size: a 1x1 convolution
    - maps of different sizes: a convolution or transposed convolution that changes the size

    Raises:
        UserError: None of these layers fits the shapes.
    """
    if from_shape[1:] == other[1:] and not always:
        return nn.Identity()
    if len(from_shape) == len(other) == 2:
        return nn.Linear(from_shape[1], other[1])
    sides = list(zip(from_shape[2:], other[2:], strict=False))
    shrinks = all(side >= wanted for side, wanted in sides)
    if len(from_shape) != len(other) or not (shrinks or all(side <= wanted for side, wanted in sides)):
        shapes = ["x".join(map(str, shape[1:])) for shape in (from_shape, other)]
        raise UserError(
            f"features of shape {shapes[0]} (student) cannot be adapted to shape {shapes[1]} (teacher). Pair "
            "two vectors, or two feature maps with similar aspect ratios",
            "method.terms.hint.taps",
        )
    height, width = (_resizing(side, wanted, shrinks) for side, wanted in sides)
    kernel, stride, padding = zip(height, width, strict=True)
    if shrinks:
        return nn.Conv2d(from_shape[1], other[1], kernel, stride, padding)
    return nn.ConvTranspose2d(from_shape[1], other[1], kernel, stride, padding)


def _resizing(side: int, wanted: int, shrinks: bool) -> tuple[int, int, int]:
    """Return the kernel size, stride and padding of a convolution from maps of height ``side`` to height ``wanted``.

    The convolution is transposed unless it ``shrinks``. If one height is a multiple of the other, the convolution has a
    stride. A convolution that halves the height is 3x3 with stride 2 and padding 1. A convolution that doubles the
    height is 4x4 with stride 2 and padding 1. Otherwise the kernel is as large as the difference of the heights
    requires.
    """
    larger = max(side, wanted)
    smaller = min(side, wanted)
    if larger % smaller:
        return larger - smaller + 1, 1, 0
    stride = larger // smaller
    if shrinks:
        return 2 * stride - 1, stride, stride - 1
    return 2 * (stride // 2) + stride, stride, stride // 2


class Hint(nn.Module):
    """The distance between a teacher's hidden features and the adapted hidden features of a student.

    Let g be the teacher's features, and h the adapter's output for the student's features. The distance has one of
    three forms:

    - ``l2``: the mean of (h - g)^2 over the elements of an example
    - ``l1``: the mean of |h - g| over the elements of an example
    - ``ce``: minus the sum over channels of softmax(g) log softmax(h), averaged over positions

    The adapter is initialized with torch's global random generator.
    """

    def __init__(self, options: HintTermSettings, f: Tensor, g: Tensor) -> None:
        super().__init__()
        self.form = options.form
        self.adapter = make_adapter(f.shape, g.shape, options.adapter == "always").to(f)

    def forward(self, f: Tensor, g: Tensor, batch: TermBatch) -> Tensor:
        """Return the distance of each example, shape [B], for the student's features ``f`` and the teacher's ``g``."""
        f = self.adapter(f)
        if self.form == "ce":
            return -(g.softmax(1) * F.log_softmax(f, 1)).sum(1).flatten(1).mean(1)
        if self.form == "l1":
            return (f - g).abs().flatten(1).mean(1)
        return (f - g).square().flatten(1).mean(1)


TERMS.update(
    hint=Term(HintTermSettings, lambda options, inputs: PairModules(inputs, partial(Hint, options)), taps="middle")
)
