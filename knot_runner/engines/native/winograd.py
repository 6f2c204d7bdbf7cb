"""3x3 convolutions of a module by Winograd's minimal filtering (``winograd.cpp``), forward and backward.

Of the time of a ResNet's step its convolutions take nine tenths. The module's images are channels last in memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from knot_runner.engines.native.library import address, native_library


class WinogradConv2d(nn.Conv2d):
    """A convolution 3x3 of stride 1 and padding 1 whose channels are whole vectors of the machine."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, K, H, W]."""
        y = _Convolution.apply(x, self.weight)
        return y if self.bias is None else y + self.bias[:, None, None]


def use_winograd(model: nn.Module, dtype: torch.dtype) -> None:
    """Makes every convolution of ``model`` that can be a :class:`WinogradConv2d` one; parameters and names stay."""
    lanes = native_library(dtype).lanes()
    for module in model.modules():
        if type(module) is nn.Conv2d and _fits(module, lanes):
            module.__class__ = WinogradConv2d
    model.register_forward_pre_hook(lambda _, inputs: tuple(map(_channels_last, inputs)))


def _fits(conv: nn.Conv2d, lanes: int) -> bool:
    """Whether ``conv`` can be a :class:`WinogradConv2d`."""
    shape = conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode
    fixed = shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")
    return fixed and conv.in_channels % lanes == 0 and conv.out_channels % lanes == 0


class _Sizes(ctypes.Structure):
    """Sizes of ``winograd.cpp``."""

    _fields_ = [(name, ctypes.c_int32) for name in ("batch", "height", "width", "channels", "filters")]


class _Convolution(torch.autograd.Function):
    """(x [B, C, H, W], weight [K, C, 3, 3]) -> [B, K, H, W], channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x, weight = _channels_last(x), weight.contiguous()
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
            sizes = ctypes.byref(_sizes(x, weight))
            native_library(x.dtype).winograd_weights_gradient(sizes, *map(address, arrays))
        return of_x, of_weight


def _convolved(x: Tensor, weight: Tensor, turned: bool) -> Tensor:
    """The convolution of ``x``, channels last; ``turned``: the gradient of its inputs from that of its outputs, x."""
    batch, _, height, width = x.shape
    shape = batch, weight.shape[1 if turned else 0], height, width
    y = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
    sizes, flag = ctypes.byref(_sizes(x, weight)), ctypes.c_int(turned)
    native_library(x.dtype).winograd_convolution(sizes, address(x), address(weight), flag, address(y))
    return y


def _sizes(x: Tensor, weight: Tensor) -> _Sizes:
    filters, channels = weight.shape[:2]
    return _Sizes(len(x), *x.shape[2:], channels, filters)


def _channels_last(x: Tensor) -> Tensor:
    """``x`` [B, C, H, W] with channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last)
