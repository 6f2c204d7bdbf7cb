"""The first dense layer in terms of the client's images instead of pixels: exact, and less work over several epochs."""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.engine.federated.lean.passes.dense import WeightBias, masked_

#: The Gram form is used if it needs at most this share of the ordinary form's multiplications.
MIN_SAVING = 0.8

#: (outputs under the starting weights Z0 [B, out], Gram rows [B, n], positions [B])
Batch = tuple[Tensor, Tensor, Tensor]


def is_cheaper(images: int, pixels: int, outputs: int, epochs: int) -> bool:
    """Whether :class:`Gram` needs fewer multiplications for ``images`` n, layer ``pixels`` x ``outputs``."""
    ordinary = 2 * epochs * images * pixels * outputs
    gram = epochs * images**2 * outputs + images**2 * pixels + 2 * images * pixels * outputs
    return gram <= MIN_SAVING * ordinary


class Gram:
    """First dense layer with ReLU, under plain SGD on unchanging images X [n, in].

    Every gradient of W [out, in] is D' X, so W = W0 + A' X with one row of A [n, out] per image, and the layer's output
    for a batch is X_b W0' + b + (X_b X' + 1) A: with both products computed once, a step multiplies by n instead of
    ``in`` values and changes A in the batch's rows only. The 1 is the bias, which learns like a constant pixel.

    ``start`` [n, out]: X W0' + b; ``products`` [n, n]: X X' + 1; ``changes`` [n, out]: A.
    """

    learns = True

    def __init__(self, layer: WeightBias, images: Tensor) -> None:
        self._layer, self._images = layer, images.flatten(1)
        self.start = torch.addmm(layer[1], self._images, layer[0].t())
        self.products = torch.mm(self._images, self._images.t()).add_(1)
        self.changes = torch.zeros_like(self.start)
        self._rows = self._output = self._gradient = self.start
        self._gathered = (self.start[:0], self.products[:0])

    def batches(self, part: Tensor, shifts: Tensor | None, flips: Tensor | None, size: int) -> list[Batch]:
        """See :class:`Stem`; there is no augmentation."""
        starts, grams = self._gathered
        if len(starts) != len(part):  # memory and its views last from epoch to epoch
            starts = self.start.new_empty(len(part), self.start.shape[1])
            grams = self.products.new_empty(len(part), self.products.shape[1])
            self._gathered = starts, grams
            self._views = list(zip(starts.split(size), grams.split(size), strict=True))
        torch.index_select(self.start, 0, part, out=starts)
        torch.index_select(self.products, 0, part, out=grams)
        return [(start, gram, rows) for (start, gram), rows in zip(self._views, part.split(size), strict=True)]

    def forward(self, x: Batch) -> Tensor:
        """See :class:`Stem`."""
        start, gram, self._rows = x
        self._output = start.addmm_(gram, self.changes).relu_()  # gathered again in every epoch, so in place
        return self._output

    def set_targets(self, targets: list[WeightBias]) -> None:
        """The changes are this layer's target."""

    def backward(self, gradient: Tensor) -> None:
        """See :class:`Stem`."""
        self._gradient = masked_(gradient, self._output)

    def accumulate(self, alpha: float) -> None:
        """See :class:`Stem`."""
        self.changes.index_add_(0, self._rows, self._gradient, alpha=alpha)

    def finish(self) -> None:
        """See :class:`Stem`."""
        weight, bias = self._layer
        weight.addmm_(self.changes.t(), self._images)
        bias.add_(self.changes.sum(0))
