"""The stems of the lean engine. A stem computes the inputs of the dense layers (:class:`Dense`) from images.

- :class:`Pixels`: flattened images, without a layer
- :class:`Convs`: convolutions
- :class:`Gram`: the first dense layer of the network, computed from inner products of images
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
    """Base class of stems. By default, a stem has no parameters.

    Attributes:
        learns: Whether the stem has parameters and needs gradients.
    """

    learns = False

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[Any]:
        """Return batches of the client's images, in the form that :meth:`forward` expects.

        ``part``: the positions of the images among the client's images. ``crops``: the augmentation of these images, or
        None. ``size``: the batch size.
        """
        raise NotImplementedError

    def forward(self, x: Any) -> Tensor:
        """Return the inputs of the dense layers, shape [B, D], for one batch ``x`` from :meth:`batches`."""
        raise NotImplementedError

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Select the tensors to which gradients are added: one pair (weight, bias) for each layer of the stem."""

    def backward(self, gradient: Tensor) -> None:
        """Compute the gradients of the parameters of the stem.

        ``gradient``: the gradient with respect to the output of :meth:`forward`, shape [B, D].
        """

    def accumulate(self, alpha: float) -> None:
        """Add ``alpha`` times each gradient to its target; see :meth:`set_targets`."""

    def finish(self) -> None:
        """Write all weight changes to the flat vector of weights. Call this method after the last step."""


class Pixels(Stem):
    """A stem that only flattens images."""

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[Tensor]:
        """Return batches of augmented and flattened images. Each batch has shape [B, D] (:meth:`Stem.batches`)."""
        chosen = augmented_images(self._images.index_select(0, part), crops)
        return list(chosen.flatten(1).split(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` unchanged, because the images are already flattened."""
        return x


class Convs(Stem):
    """A stem of convolutions, each followed by 2x2 max-pooling and ReLU.

    ReLU is applied after the pooling, because this order is faster and the result is the same. The gradient with
    respect to the images is never computed.
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
        """Return batches of augmented images. Each batch has shape [B, C, H, W] (:meth:`Stem.batches`)."""
        chosen = self._images.index_select(0, part).permute(0, 3, 1, 2)
        return list(augmented_images(chosen, crops).split(size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the flattened feature maps of one batch, shape [B, D], and store values for :meth:`backward`."""
        kept = []
        for (weight, bias), padding in zip(self._layers, self._paddings, strict=True):
            y = F.conv2d(x, weight, bias, padding=padding)
            pooled, where = _aten.max_pool2d_with_indices(y, [2, 2], [2, 2])
            # After the pooling, ReLU processes only a quarter of the values.
            pooled.relu_()
            kept.append((x, y, where, pooled))
            x = pooled
        self._kept = kept
        return x.flatten(1)

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Select the tensors to which gradients are added: one pair (weight, bias) for each convolution."""
        self._targets = targets

    def backward(self, gradient: Tensor) -> None:
        """Compute the gradients of all weights and biases (:meth:`Stem.backward`)."""
        gradient = gradient.view(self._kept[-1][3].shape).contiguous(memory_format=torch.channels_last)
        gradients = []
        for i in range(len(self._layers) - 1, -1, -1):
            x, y, where, pooled = self._kept[i]
            masked_(gradient, pooled)
            # The sum over pooled positions is equal to the sum over all positions, with a quarter of the values.
            bias = gradient.sum((0, 2, 3))
            wide = _aten.max_pool2d_with_indices_backward(gradient, y, [2, 2], [2, 2], [0, 0], [1, 1], False, where)
            gradient, weight, _ = _aten.convolution_backward(
                wide, x, self._layers[i][0], None, [1, 1], [self._paddings[i]] * 2, [1, 1], False, [0, 0], 1,
                [i > 0, True, False],
            )  # fmt: skip
            gradients.append((weight, bias))
        self._gradients = gradients[::-1]

    def accumulate(self, alpha: float) -> None:
        """Add ``alpha`` times each gradient to its target; see :meth:`set_targets`."""
        for (weight, bias), (dweight, dbias) in zip(self._targets, self._gradients, strict=True):
            weight.add_(dweight, alpha=alpha)
            bias.add_(dbias, alpha=alpha)


class Gram(Stem):
    """A stem that computes the first dense layer and its ReLU from inner products of the client's images.

    The stem requires images without augmentation, and SGD without momentum, weight decay, a proximal term, or a control
    variate. Results differ from a dense product by rounding. The stem may save work if there are several epochs.

    Let ``X`` be the client's images, shape [n, D], ``W`` the weight, shape [M, D], and ``b`` the bias, shape [M]. The
    sign ``'`` stands for the transpose. In every step, the gradient of W is ``G' X``. Here G, shape [n, M], is the
    gradient with respect to the layer's output, and is 0 for images outside the batch. After any number of steps, the
    weight is therefore ``W = W0 + A' X``, where W0 is the initial weight and A is a matrix of shape [n, M].

    For a batch of images ``X_b``, the layer's output is ``X_b W0' + b0 + (X_b X' + 1) A``, where b0 is the initial
    bias. The added 1 gives the change of the bias, because the bias is trained like the weight of a pixel with the
    constant value 1. ``X W0'`` and ``X X'`` are computed once for all images. A step changes only those rows of A that
    belong to the images of the batch.

    Attributes:
        start: ``X W0' + b0``, shape [n, M].
        products: ``X X' + 1``, shape [n, n].
        changes: ``A``, shape [n, M].
    """

    learns = True

    def __init__(self, layer: WeightBias, images: Tensor) -> None:
        self._layer = layer
        self._images = images.flatten(1)
        self.start = torch.addmm(layer[1], self._images, layer[0].t())
        # With these products, a step has the inner dimension n instead of the number of pixels.
        self.products = torch.mm(self._images, self._images.t()).add_(1)
        self.changes = torch.zeros_like(self.start)
        self._rows = self._output = self._gradient = self.start
        self._gathered = (self.start[:0], self.products[:0])

    @staticmethod
    def is_cheaper(images: int, pixels: int, outputs: int, epochs: int) -> bool:
        """Return whether this stem needs clearly fewer multiplications than a dense layer (see ``MIN_SAVING``).

        Args:
            images: The number of images.
            pixels: The number of inputs of the layer.
            outputs: The number of outputs of the layer.
            epochs: The number of epochs.
        """
        ordinary = 2 * epochs * images * pixels * outputs
        gram = epochs * images**2 * outputs + images**2 * pixels + 2 * images * pixels * outputs
        return gram <= MIN_SAVING * ordinary

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[_GramBatch]:
        """Return batches of images, each as a triple: rows of ``start``, rows of ``products``, and the row numbers.

        ``crops`` must be None, because this stem does not support augmentation.
        """
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
        """Return the ReLU of the layer's output for one batch, shape [B, M]."""
        start, gram, self._rows = x
        # in place, because every epoch gathers these values again
        self._output = start.addmm_(gram, self.changes).relu_()
        return self._output

    def backward(self, gradient: Tensor) -> None:
        """Apply the backward pass of the ReLU to ``gradient``, shape [B, M]."""
        self._gradient = masked_(gradient, self._output)

    def accumulate(self, alpha: float) -> None:
        """Add ``alpha`` times the gradient from :meth:`backward` to the batch's rows of ``changes``."""
        self.changes.index_add_(0, self._rows, self._gradient, alpha=alpha)

    def finish(self) -> None:
        """Compute the weight and the bias from ``changes``, and write both to the flat vector of weights."""
        weight, bias = self._layer
        weight.addmm_(self.changes.t(), self._images)
        bias.add_(self.changes.sum(0))
