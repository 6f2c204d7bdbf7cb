"""Convolutions of the lean engine whose pooling and backward pass are compiled.

2x2 max-pooling with ReLU lets through about one in eight of the gradients of a convolution's outputs; the compiled
pass multiplies these alone (``pooled_convolution.cpp``), where a dense one multiplies the zeros, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.examples import augmented_images
from knot_runner.engine.federated.lean.passes.dense import WeightBias
from knot_runner.engine.federated.native.library import SLACK, address, native_library


class _Shape(ctypes.Structure):
    """Shape of ``pooled_convolution.cpp``."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("batch", "h", "w", "channels", "height", "width", "inputs", "kernel")
    ]  # fmt: skip


class PooledConvs:
    """Convolutions, 2x2 max-pooling, ReLU (:class:`~knot_runner.engine.federated.lean.passes.stems.Stem`), channels
    last in memory, every input within its padding, so that a filter's row lies in one piece.

    ``layers``: (weight [C, I, K, K], bias [C]) of each; ``paddings`` of each; ``images`` [n, C, H, W].
    """

    learns = True

    def __init__(self, layers: list[WeightBias], paddings: Sequence[int], images: Tensor) -> None:
        self._layers, self._paddings, self._dtype = layers, [*paddings, 0], images.dtype
        self._library = native_library(images.dtype)
        self._images = images.permute(0, 2, 3, 1).contiguous()
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[WeightBias] = []
        self._targets: list[WeightBias] = []

    def batches(self, part: Tensor, shifts: Tensor | None, flips: Tensor | None, size: int) -> list[Tensor]:
        """See :class:`Stem`: padded images [B, H, W, C]."""
        chosen = self._images.index_select(0, part).permute(0, 3, 1, 2)
        chosen = augmented_images(chosen, shifts, flips).permute(0, 2, 3, 1)
        n, height, width, channels = chosen.shape
        pad = self._paddings[0]
        padded = self._padded(n, height + 2 * pad, width + 2 * pad, channels)
        padded[:, pad : pad + height, pad : pad + width] = chosen
        return list(padded.split(size))

    def forward(self, x: Tensor) -> Tensor:
        """See :class:`Stem`."""
        kept = []
        for (weight, bias), pad in zip(self._layers, self._paddings[1:], strict=True):
            outputs = F.conv2d(x.permute(0, 3, 1, 2), weight, bias)
            outputs = outputs.permute(0, 2, 3, 1).contiguous()
            batch, height, width, channels = outputs.shape
            h, w = height // 2, width // 2
            where = torch.empty(batch, h, w, channels, dtype=torch.uint8)
            pooled = self._padded(batch, h + 2 * pad, w + 2 * pad, channels)
            sizes = [ctypes.c_int(size) for size in (batch, height, width, channels, pad)]
            self._library.pool_relu(address(outputs), address(pooled), address(where), *sizes)
            kept.append((x, where))
            x = pooled
        self._kept = kept
        return x.permute(0, 3, 1, 2).flatten(1)

    def set_targets(self, targets: list[WeightBias]) -> None:
        """See :class:`Stem`."""
        self._targets = targets

    def backward(self, gradient: Tensor) -> None:
        """See :class:`Stem`."""
        batch, h, w, channels = self._kept[-1][1].shape
        gradient = gradient.view(batch, channels, h, w).permute(0, 2, 3, 1).contiguous()
        found = []
        for number in range(len(self._layers) - 1, -1, -1):
            (weight, bias), (inputs, where) = self._layers[number], self._kept[number]
            batch, h, w, channels = where.shape
            kernel, depth = weight.shape[-1], inputs.shape[-1]
            lanes = self._library.lanes()
            row = -(-kernel * depth // lanes) * lanes
            filters = weight.new_zeros(channels, kernel, row)
            filters[:, :, : kernel * depth] = weight.permute(0, 2, 3, 1).flatten(2)
            slopes, bias_slopes = torch.zeros_like(filters), torch.zeros_like(bias)
            below = self._padded(*inputs.shape) if number else None
            shape = _Shape(batch, h, w, channels, *inputs.shape[1:3], depth, kernel)
            self._library.convolution_backward(
                ctypes.byref(shape), address(gradient), address(where), address(inputs), address(filters),
                address(below), address(slopes), address(bias_slopes),
            )  # fmt: skip
            slopes = slopes[:, :, : kernel * depth].unflatten(2, (kernel, depth)).permute(0, 3, 1, 2)
            found.append((slopes, bias_slopes))
            if below is not None:
                pad = self._paddings[number]
                gradient = below[:, pad : below.shape[1] - pad, pad : below.shape[2] - pad].contiguous()
        self._gradients = found[::-1]

    def accumulate(self, alpha: float) -> None:
        """See :class:`Stem`."""
        for (weight, bias), (dweight, dbias) in zip(self._targets, self._gradients, strict=True):
            weight.add_(dweight, alpha=alpha)
            bias.add_(dbias, alpha=alpha)

    def finish(self) -> None:
        """The weights are up to date after every step."""

    def _padded(self, *shape: int) -> Tensor:
        """Zeros [B, H, W, C], with slack behind them."""
        count = shape[0] * shape[1] * shape[2] * shape[3]
        return torch.zeros(count + SLACK, dtype=self._dtype)[:count].view(shape)
