"""Stems: the layers before the dense layers in the lean engine.

There are three kinds: flattened pixels without any layer, convolutions, and the first dense layer computed from inner
products of images.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.examples import augmented_images
from knot_runner.engine.federated.lean.dense import WeightBias, masked_

_aten = torch.ops.aten
#: :class:`Gram` is used if it needs at most this fraction of the multiplications of an ordinary dense layer.
MIN_SAVING = 0.8
#: (outputs under the starting weights Z0 [B, out], Gram rows [B, n], positions [B])
_GramBatch = tuple[Tensor, Tensor, Tensor]


class Stem:
    """The layers before the dense layers. In this base class, a stem has no parameters.

    Attributes:
        learns: Whether the stem has parameters and needs gradients.
    """

    learns = False

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[Any]:
        """Return the client's images at the positions ``part``, shape [n'], augmented and divided into batches."""
        raise NotImplementedError

    def forward(self, x: Any) -> Tensor:
        """Return the features [B, in] of one batch."""
        raise NotImplementedError

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Select the tensors to which gradients are added: one pair (weight, bias) for each layer of the stem."""

    def backward(self, gradient: Tensor) -> None:
        """Compute the gradients of the parameters, given the gradient with respect to the features, shape [B, in]."""

    def accumulate(self, alpha: float) -> None:
        """Add ``alpha`` times each gradient to its target; see :meth:`set_targets`."""

    def finish(self) -> None:
        """After the last step, add weight changes that are not yet applied to the flat vector of weights."""


class Pixels(Stem):
    """Flattened images, without parameters."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[Tensor]:
        """Implement :meth:`Stem.batches`."""
        chosen = augmented_images(self._images.index_select(0, part), crops)
        return list(chosen.flatten(1).split(size))

    def forward(self, x: Tensor) -> Tensor:
        """Implement :meth:`Stem.forward`."""
        return x


class Convs(Stem):
    """Convolutions, 2x2 max-pooling and ReLU, channels last in memory.

    ReLU is applied after the pooling. The result is the same, but ReLU processes only a quarter of the values. For the
    same reason, the gradient of the biases is summed over pooled positions. The gradient with respect to the images is
    never computed.
    """

    learns = True

    def __init__(self, layers: list[WeightBias], paddings: list[int], images: Tensor) -> None:
        self._layers = layers
        self._paddings = paddings
        self._images = images.permute(0, 2, 3, 1).contiguous()
        self._kept: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._gradients: list[WeightBias] = []
        self._targets: list[WeightBias] = []

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[Tensor]:
        """Implement :meth:`Stem.batches`."""
        chosen = self._images.index_select(0, part).permute(0, 3, 1, 2)
        return list(augmented_images(chosen, crops).split(size))

    def forward(self, x: Tensor) -> Tensor:
        """Implement :meth:`Stem.forward`."""
        kept = []
        for (weight, bias), padding in zip(self._layers, self._paddings, strict=True):
            y = F.conv2d(x, weight, bias, padding=padding)
            pooled, where = _aten.max_pool2d_with_indices(y, [2, 2], [2, 2])
            pooled.relu_()
            kept.append((x, y, where, pooled))
            x = pooled
        self._kept = kept
        return x.flatten(1)

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Implement :meth:`Stem.set_targets`."""
        self._targets = targets

    def backward(self, gradient: Tensor) -> None:
        """Implement :meth:`Stem.backward`."""
        gradient = gradient.view(self._kept[-1][3].shape).contiguous(memory_format=torch.channels_last)
        gradients = []
        for i in range(len(self._layers) - 1, -1, -1):
            x, y, where, pooled = self._kept[i]
            masked_(gradient, pooled)
            bias = gradient.sum((0, 2, 3))
            wide = _aten.max_pool2d_with_indices_backward(gradient, y, [2, 2], [2, 2], [0, 0], [1, 1], False, where)
            gradient, weight, _ = _aten.convolution_backward(
                wide, x, self._layers[i][0], None, [1, 1], [self._paddings[i]] * 2, [1, 1], False, [0, 0], 1,
                [i > 0, True, False],
            )  # fmt: skip
            gradients.append((weight, bias))
        self._gradients = gradients[::-1]

    def accumulate(self, alpha: float) -> None:
        """Implement :meth:`Stem.accumulate`."""
        for (weight, bias), (dweight, dbias) in zip(self._targets, self._gradients, strict=True):
            weight.add_(dweight, alpha=alpha)
            bias.add_(dbias, alpha=alpha)


class Gram(Stem):
    """The first dense layer with ReLU, computed from inner products of the client's images.

    The result is exact and needs less work for several epochs of plain SGD on unchanging images X [n, in].

    The sign ' stands for the transpose. In every step, the gradient of the weight W [out, in] is D' X, where D [n, out]
    is the gradient with respect to the layer's output (0 for images outside the batch). Therefore W = W0 + A' X, with
    the initial weight W0 and a matrix A [n, out] that has one row per image. For a batch with the images X_b, the
    layer's output is X_b W0' + b + (X_b X' + 1) A, where b is the initial bias. X_b W0' and X_b X' are computed once
    for all images. The products of a step then have the inner dimension n instead of ``in``, and a step changes only
    those rows of A that belong to the batch. The 1 represents the bias, which is trained like the weight of a pixel
    with the constant value 1.

    ``start`` [n, out]: X W0' + b; ``products`` [n, n]: X X' + 1; ``changes`` [n, out]: A.
    """

    learns = True

    def __init__(self, layer: WeightBias, images: Tensor) -> None:
        self._layer = layer
        self._images = images.flatten(1)
        self.start = torch.addmm(layer[1], self._images, layer[0].t())
        self.products = torch.mm(self._images, self._images.t()).add_(1)
        self.changes = torch.zeros_like(self.start)
        self._rows = self._output = self._gradient = self.start
        self._gathered = (self.start[:0], self.products[:0])

    @staticmethod
    def is_cheaper(images: int, pixels: int, outputs: int, epochs: int) -> bool:
        """Return whether this method needs at most ``MIN_SAVING`` of the multiplications of a dense layer.

        The layer maps ``pixels`` values of an image to ``outputs`` values.
        """
        ordinary = 2 * epochs * images * pixels * outputs
        gram = epochs * images**2 * outputs + images**2 * pixels + 2 * images * pixels * outputs
        return gram <= MIN_SAVING * ordinary

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[_GramBatch]:
        """Implement :meth:`Stem.batches`, without augmentation."""
        starts, grams = self._gathered
        if len(starts) != len(part):  # memory and views are reused in every epoch
            starts = self.start.new_empty(len(part), self.start.shape[1])
            grams = self.products.new_empty(len(part), self.products.shape[1])
            self._gathered = starts, grams
            self._views = list(zip(starts.split(size), grams.split(size), strict=True))
        torch.index_select(self.start, 0, part, out=starts)
        torch.index_select(self.products, 0, part, out=grams)
        return [(start, gram, rows) for (start, gram), rows in zip(self._views, part.split(size), strict=True)]

    def forward(self, x: _GramBatch) -> Tensor:
        """Implement :meth:`Stem.forward`."""
        start, gram, self._rows = x
        # in place, because every epoch gathers these values again
        self._output = start.addmm_(gram, self.changes).relu_()
        return self._output

    def backward(self, gradient: Tensor) -> None:
        """Implement :meth:`Stem.backward`."""
        self._gradient = masked_(gradient, self._output)

    def accumulate(self, alpha: float) -> None:
        """Implement :meth:`Stem.accumulate`."""
        self.changes.index_add_(0, self._rows, self._gradient, alpha=alpha)

    def finish(self) -> None:
        """Implement :meth:`Stem.finish`."""
        weight, bias = self._layer
        weight.addmm_(self.changes.t(), self._images)
        bias.add_(self.changes.sum(0))
