"""Convolutions of the lean engine with compiled pooling and backward pass.

2x2 max-pooling with ReLU passes on about one in eight gradients of a convolution's outputs. The compiled pass
multiplies only these gradients (``pooled_convolution.cpp``), whereas a dense pass also multiplies the zeros.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from knot_runner.engine.examples import augmented_images
from knot_runner.engine.federated.lean.dense import WeightBias
from knot_runner.engine.federated.lean.stems import Stem
from knot_runner.engines.native.library import OVERREAD, address, integers, native_library


@dataclass(frozen=True)
class _Buffers:
    """Memory for one convolution and batches of one size, reused in every step.

    Attributes:
        pooled: The outputs [B, h + 2p, w + 2p, C] with the next layer's padding p, which stays 0.
        where: The position of the largest value in each 2x2 window, shape [B, h, w, C].
        gradient: The gradient with respect to ``pooled``.
    """

    pooled: Tensor
    where: Tensor
    gradient: Tensor


class PooledConvs(Stem):
    """Convolutions, 2x2 max-pooling and ReLU, channels last in memory.

    See :class:`~knot_runner.engine.federated.lean.stems.Stem`. Inputs are stored with their padding, so that a row of a
    filter reads contiguous memory.

    ``layers``: (weight [C, I, K, K], bias [C]) of each convolution; ``paddings``: the padding of each convolution;
    ``images`` [n, C, H, W].
    """

    learns = True

    def __init__(self, layers: list[WeightBias], paddings: Sequence[int], images: Tensor) -> None:
        self._layers = layers
        self._paddings = [*paddings, 0]
        self._library = native_library(images.dtype)
        self._images = images.permute(0, 2, 3, 1).contiguous()
        self._filters = [self._packed(weight) for weight, _ in layers]
        self._slopes = [
            (torch.zeros_like(packed), bias.clone()) for packed, (_, bias) in zip(self._filters, layers, strict=True)
        ]
        self._buffers: dict[tuple[int, int], _Buffers] = {}
        self._inputs: list[Tensor] = []
        self._used: list[_Buffers] = []
        self._targets: list[WeightBias] = []

    def batches(self, part: Tensor, crops: Tensor | None, size: int) -> list[Tensor]:
        """Implement :meth:`Stem.batches`: padded images [B, H, W, C]."""
        chosen = self._images.index_select(0, part).permute(0, 3, 1, 2)
        chosen = augmented_images(chosen, crops).permute(0, 2, 3, 1)
        n, height, width, channels = chosen.shape
        pad = self._paddings[0]
        padded = _zeros(n, height + 2 * pad, width + 2 * pad, channels, reference=chosen)
        padded[:, pad : pad + height, pad : pad + width] = chosen
        return list(padded.split(size))

    def forward(self, x: Tensor) -> Tensor:
        """Implement :meth:`Stem.forward`."""
        self._inputs, self._used = [], []
        for number, (weight, bias) in enumerate(self._layers):
            outputs = F.conv2d(x.permute(0, 3, 1, 2), weight, bias).permute(0, 2, 3, 1).contiguous()
            buffers = self._memory(number, outputs)
            pad = self._paddings[number + 1]
            sizes = [ctypes.c_int(size) for size in (*outputs.shape, pad)]
            self._library.pool_relu(address(outputs), address(buffers.pooled), address(buffers.where), *sizes)
            self._inputs.append(x)
            self._used.append(buffers)
            x = buffers.pooled
        return x.permute(0, 3, 1, 2).flatten(1)

    def set_targets(self, targets: list[WeightBias]) -> None:
        """Implement :meth:`Stem.set_targets`."""
        self._targets = targets

    def backward(self, gradient: Tensor) -> None:
        """Implement :meth:`Stem.backward`."""
        last = self._used[-1].gradient
        batch, h, w, channels = last.shape
        last.copy_(gradient.view(batch, channels, h, w).permute(0, 2, 3, 1))
        for number in range(len(self._layers) - 1, -1, -1):
            below = None
            if number:
                below = self._used[number - 1].gradient.zero_()
                self._packed(self._layers[number][0], self._filters[number])
            slopes = [slope.zero_() for slope in self._slopes[number]]
            inputs, used = self._inputs[number], self._used[number]
            kernel = self._layers[number][0].shape[-1]
            pad = self._paddings[number + 1]
            # the C structure Shape: batch, h, w, channels, height, width, inputs, kernel, pad
            shape = integers(*used.where.shape, *inputs.shape[1:], kernel, pad)
            arrays = used.gradient, used.where, inputs, self._filters[number], below, *slopes
            self._library.convolution_backward(shape, *map(address, arrays))

    def accumulate(self, alpha: float) -> None:
        """Implement :meth:`Stem.accumulate`."""
        for (weight, bias), (slopes, bias_slopes) in zip(self._targets, self._slopes, strict=True):
            weight.add_(_unpacked(slopes, weight), alpha=alpha)
            bias.add_(bias_slopes, alpha=alpha)

    def _memory(self, number: int, outputs: Tensor) -> _Buffers:
        """Return the memory of layer ``number`` for batches with the size of ``outputs`` [B, H, W, C]."""
        batch, height, width, channels = outputs.shape
        if (number, batch) not in self._buffers:
            h, w, pad = height // 2, width // 2, self._paddings[number + 1]
            pooled, gradient = (_zeros(batch, h + 2 * pad, w + 2 * pad, channels, reference=outputs) for _ in range(2))
            where = torch.empty(batch, h, w, channels, dtype=torch.uint8)
            self._buffers[number, batch] = _Buffers(pooled, where, gradient)
        return self._buffers[number, batch]

    def _packed(self, weight: Tensor, into: Tensor | None = None) -> Tensor:
        """Return ``weight`` [C, I, K, K] as [C, K, R], where R is K * I rounded up to whole SIMD vectors."""
        channels, depth, kernel, _ = weight.shape
        if into is None:
            lanes = self._library.lanes()
            into = weight.new_zeros(channels, kernel, -(-kernel * depth // lanes) * lanes)
        _unpacked(into, weight).copy_(weight)
        return into


def _unpacked(packed: Tensor, weight: Tensor) -> Tensor:
    """Return a view [C, I, K, K] of a packed array, with the shape of ``weight``."""
    depth, kernel = weight.shape[1:3]
    return packed[:, :, : kernel * depth].unflatten(2, (kernel, depth)).permute(0, 3, 1, 2)


def _zeros(*shape: int, reference: Tensor) -> Tensor:
    """Return zeros of the given ``shape``, in memory that also has readable values after the last element."""
    count = shape[0] * shape[1] * shape[2] * shape[3]
    return reference.new_zeros(count + OVERREAD)[:count].view(shape)


# ---------------------------------------------------------------------------------------------------------- winograd


class WinogradConv2d(nn.Conv2d):
    """A 3x3 convolution with stride 1 and padding 1, whose channel counts are multiples of the vector width."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution [B, K, H, W] of ``x`` [B, C, H, W]."""
        y = _Convolution.apply(x, self.weight)
        return y if self.bias is None else y + self.bias[:, None, None]


def use_winograd(model: nn.Module, dtype: torch.dtype) -> None:
    """Replace every suitable convolution of ``model`` by a :class:`WinogradConv2d`. Parameter names do not change."""
    lanes = native_library(dtype).lanes()
    for module in model.modules():
        if type(module) is nn.Conv2d and _fits(module, lanes):
            module.__class__ = WinogradConv2d
    model.register_forward_pre_hook(lambda _, inputs: tuple(map(_channels_last, inputs)))


def _fits(conv: nn.Conv2d, lanes: int) -> bool:
    """Return whether a :class:`WinogradConv2d` can replace ``conv``."""
    shape = conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode
    fixed = shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")
    return fixed and conv.in_channels % lanes == 0 and conv.out_channels % lanes == 0


class _Convolution(torch.autograd.Function):
    """Autograd function of the convolution of x [B, C, H, W] with a weight [K, C, 3, 3], channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x = _channels_last(x)
        weight = weight.contiguous()
        ctx.save_for_backward(x, weight)
        return _convolved(x, weight, turned=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (x, weight), gradient = ctx.saved_tensors, _channels_last(gradients[0])
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            of_x = _convolved(gradient, weight, turned=True)
        if ctx.needs_input_grad[1]:
            of_weight = torch.empty_like(weight)
            arrays = x, gradient, of_weight
            native_library(x.dtype).winograd_weights_gradient(_sizes(x, weight), *map(address, arrays))
        return of_x, of_weight


def _convolved(x: Tensor, weight: Tensor, turned: bool) -> Tensor:
    """Return the convolution of ``x``, channels last.

    ``turned``: whether ``x`` is the gradient with respect to the outputs. The result is then the gradient with respect
    to the inputs.
    """
    batch, _, height, width = x.shape
    shape = batch, weight.shape[1 if turned else 0], height, width
    y = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
    flag = ctypes.c_int(turned)
    native_library(x.dtype).winograd_convolution(_sizes(x, weight), address(x), address(weight), flag, address(y))
    return y


def _sizes(x: Tensor, weight: Tensor) -> ctypes.Array[ctypes.c_int32]:
    """Return the C structure Sizes in ``winograd.cpp``: batch, height, width, channels, filters."""
    filters, channels = weight.shape[:2]
    return integers(len(x), *x.shape[2:], channels, filters)


def _channels_last(x: Tensor) -> Tensor:
    """Return ``x`` [B, C, H, W] in channels-last memory format."""
    return x.contiguous(memory_format=torch.channels_last)
