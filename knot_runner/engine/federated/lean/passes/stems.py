"""The layers before the dense ones in the lean engine: none (pixels), or convolutions."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.examples import augmented_images
from knot_runner.engine.federated.lean.passes.dense import WeightBias, masked_

_aten = torch.ops.aten


class Stem(Protocol):
    """The layers before the dense ones. ``learns``: it has parameters, so it needs gradients."""

    learns: bool

    def batches(self, part: Tensor, shifts: Tensor | None, flips: Tensor | None, size: int) -> list[Any]:
        """The images at positions ``part`` [n'] of the client's, augmented, as batches that :meth:`forward` takes."""
        ...

    def forward(self, x: Any) -> Tensor:
        """Features [B, in] of one batch."""
        ...

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Gradients go to ``targets``: views as of the stem's own parameters."""
        ...

    def backward(self, gradient: Tensor) -> None:
        """Gradients of the parameters, from that of the features [B, in]."""
        ...

    def accumulate(self, alpha: float) -> None:
        """Add ``alpha`` times the gradients to their targets."""
        ...

    def finish(self) -> None:
        """After the last step: write pending changes to the flat weights."""
        ...


class Pixels:
    """No parameters: flattened images."""

    learns = False

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def batches(self, part: Tensor, shifts: Tensor | None, flips: Tensor | None, size: int) -> list[Tensor]:
        """See :class:`Stem`."""
        chosen = augmented_images(self._images.index_select(0, part), shifts, flips)
        return list(chosen.flatten(1).split(size))

    def forward(self, x: Tensor) -> Tensor:
        """See :class:`Stem`."""
        return x

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Nothing learns."""

    def backward(self, gradient: Tensor) -> None:
        """Nothing learns."""

    def accumulate(self, alpha: float) -> None:
        """Nothing learns."""

    def finish(self) -> None:
        """Nothing learns."""


class Convs:
    """Convolutions, 2x2 max-pooling, ReLU, channels last in memory.

    ReLU follows the pooling, with which it commutes, and so works on a quarter of the values; for the same reason the
    biases' gradient is summed over pooled positions. The images' own gradient is never computed.
    """

    learns = True

    def __init__(self, layers: list[WeightBias], paddings: list[int], images: Tensor) -> None:
        self._layers, self._used, self._paddings = layers, layers, paddings
        self._images = images.permute(0, 2, 3, 1).contiguous()
        self._kept: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._gradients: list[WeightBias] = []
        self._targets: list[WeightBias] = []

    def batches(self, part: Tensor, shifts: Tensor | None, flips: Tensor | None, size: int) -> list[Tensor]:
        """See :class:`Stem`."""
        chosen = self._images.index_select(0, part).permute(0, 3, 1, 2)
        return list(augmented_images(chosen, shifts, flips).split(size))

    def forward(self, x: Tensor) -> Tensor:
        """See :class:`Stem`."""
        kept, self._used = [], self._operands()
        for (weight, bias), padding in zip(self._used, self._paddings, strict=True):
            y = F.conv2d(x, weight, bias, padding=padding)
            pooled, where = _aten.max_pool2d_with_indices(y, [2, 2], [2, 2])
            pooled.relu_()
            kept.append((x, y, where, pooled))
            x = pooled
        self._kept = kept
        return x.flatten(1)

    def set_targets(self, targets: list[WeightBias]) -> None:
        """See :class:`Stem`."""
        self._targets = targets

    def backward(self, gradient: Tensor) -> None:
        """See :class:`Stem`."""
        gradient = gradient.view(self._kept[-1][3].shape).contiguous(memory_format=torch.channels_last)
        found = []
        for i in range(len(self._layers) - 1, -1, -1):
            x, y, where, pooled = self._kept[i]
            masked_(gradient, pooled)
            bias = self._bias_gradient(gradient)
            wide = _aten.max_pool2d_with_indices_backward(gradient, y, [2, 2], [2, 2], [0, 0], [1, 1], False, where)
            gradient, weight, _ = _aten.convolution_backward(
                wide, x, self._used[i][0], None, [1, 1], [self._paddings[i]] * 2, [1, 1], False, [0, 0], 1,
                [i > 0, True, False],
            )  # fmt: skip
            found.append((weight, bias))
        self._gradients = found[::-1]

    def accumulate(self, alpha: float) -> None:
        """See :class:`Stem`."""
        for (weight, bias), (dweight, dbias) in zip(self._targets, self._gradients, strict=True):
            weight.add_(dweight, alpha=alpha)
            bias.add_(dbias, alpha=alpha)

    def finish(self) -> None:
        """The weights are up to date after every step."""

    def _operands(self) -> list[WeightBias]:
        """The layers as a step multiplies by them."""
        return self._layers

    def _bias_gradient(self, gradient: Tensor) -> Tensor:
        """Sum [O] of a gradient [B, O, h, w]."""
        return gradient.sum((0, 2, 3))
