"""Layers of image models: normalization for padded batches, and 2x2 max pooling.

The stacked engine pads the batches of clients to equal sizes, and normalization must not include the padding.
:func:`max_pool` has the same values and gradients as ``F.max_pool2d``, bit for bit, and takes less time on a CPU. For
tensors with channels first, PyTorch's pooling (2.11 to 2.13) is not vectorized on a CPU and takes longer than the
convolutions of a small network. For tensors with channels last, it is vectorized.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor as _in_transform  # has no public name

from knot_runner.config.settings.networks import MobilenetSettings, ResnetSettings, VggSettings, WrnSettings

MOMENTUM = 0.1
#: Added to variances, as PyTorch does.
EPSILON = 1e-5
#: PyTorch's classes of batch normalization, which custom models may contain.
TORCH_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def initialize_convolutions(model: nn.Module) -> None:
    """Initialize convolution weights from He et al.'s normal distribution, and biases to zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def make_norm(spec: ResnetSettings | WrnSettings | VggSettings | MobilenetSettings, channels: int) -> nn.Module:
    """Return the normalization layer that ``model.norm`` selects."""
    if spec.norm == "group":
        return nn.GroupNorm(spec.groups, channels)
    return BatchNorm(channels)


class BatchNorm(nn.Module):
    """``nn.BatchNorm2d`` for inputs of shape [B, C, H, W], with a ``mask`` that excludes padded samples.

    ``mask``, shape [B], is 1 for a sample and 0 for padding, which does not count in mean and variance. None: no
    padding. In training mode, a batch with a single value per channel (one 1x1 image) uses the running statistics.
    PyTorch raises an error for such a batch, because a single value has no variance. Running statistics are buffers.
    """

    running_mean: Tensor
    running_var: Tensor
    mask: Tensor | None

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("mask", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, of shape [B, C, H, W], normalized per channel."""
        trains = self.training and x.numel() != x.shape[1]
        if trains and self.mask is not None:
            return self._masked(x, self.mask)
        statistics = self.running_mean, self.running_var
        return F.batch_norm(x, *statistics, self.weight, self.bias, trains, MOMENTUM, EPSILON)

    def _masked(self, x: Tensor, real: Tensor) -> Tensor:
        mask = real.to(x.dtype)[:, None, None, None]
        count = real.sum().to(x.dtype) * x.shape[2] * x.shape[3]
        enough = count > 1
        mean = torch.where(enough, (x * mask).sum((0, 2, 3)) / count.clamp_min(1), self.running_mean)
        centered = x - mean[:, None, None]
        var = torch.where(enough, (centered.square() * mask).sum((0, 2, 3)) / count.clamp_min(1), self.running_var)
        with torch.no_grad():  # as in PyTorch, the running variance receives the unbiased variance
            step = MOMENTUM * enough.to(x.dtype)  # a product with a bool tensor would be float32
            unbiased = var.detach() * count / (count - 1).clamp_min(1)
            self.running_mean.add_(step * (mean.detach() - self.running_mean))
            self.running_var.add_(step * (unbiased - self.running_var))
        scale = self.weight / (var + EPSILON).sqrt()
        return centered * scale[:, None, None] + self.bias[:, None, None]


_aten = torch.ops.aten


def max_pool(x: Tensor) -> Tensor:
    """Return the maximum of each 2x2 window, shape [..., C, H // 2, W // 2], of x of shape [..., C, H, W].

    As in ``F.max_pool2d``, a last odd row or column is ignored and NaN stays NaN. If several values are equal, the
    gradient goes to the first of these values in row order.
    """
    if not x.is_cpu or torch.compiler.is_compiling() or _in_transform(x) or _has_channels_last(x):
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
    """Autograd function that computes the pooling on a channels-last copy of the input.

    Inputs, outputs and gradients have channels first, so that the surrounding layers compute exactly as with
    ``F.max_pool2d``.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        pooled, where = _aten.max_pool2d_with_indices(x.contiguous(memory_format=torch.channels_last), [2, 2], [2, 2])
        ctx.save_for_backward(x, where)
        return pooled.contiguous()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        x, where = ctx.saved_tensors
        return _aten.max_pool2d_with_indices_backward(gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, where)
