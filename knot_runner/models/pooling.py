"""2x2 max pooling of images: the values and gradients of ``F.max_pool2d``, bit for bit, in less time on a CPU.

PyTorch's pooling (2.11 to 2.13) of tensors with channels first is not vectorised on a CPU, where it takes longer than
the convolutions of a small network; that of tensors with channels last is.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor as _in_transform  # of vmap or grad; no public name

_aten = torch.ops.aten


def max_pool(x: Tensor) -> Tensor:
    """The maxima [..., C, H // 2, W // 2] of the 2x2 windows of x [..., C, H, W]; a last odd row or column is left
    out, NaN stays NaN, and of equal values the first, row by row, has the gradient, all as in ``F.max_pool2d``."""
    if x.device.type != "cpu" or torch.compiler.is_compiling() or _in_transform(x) or _has_channels_last(x):
        return F.max_pool2d(x, 2)
    if torch.is_grad_enabled():
        return _ByChannelsLast.apply(x)
    height, width = (side // 2 * 2 for side in x.shape[-2:])
    x = x[..., :height, :width]
    rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
    return torch.maximum(rows[..., ::2], rows[..., 1::2])


def _has_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


class _ByChannelsLast(torch.autograd.Function):
    """Pooling of a copy with channels last; what goes in and comes out, gradients too, has channels first, so that
    the layers around it compute as they would around ``F.max_pool2d``."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        pooled, where = _aten.max_pool2d_with_indices(x.contiguous(memory_format=torch.channels_last), [2, 2], [2, 2])
        ctx.save_for_backward(x, where)
        return pooled.contiguous()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        x, where = ctx.saved_tensors
        return _aten.max_pool2d_with_indices_backward(gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where)
