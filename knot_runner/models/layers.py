"""Normalization layers of image models, and the initialization of convolutions.

The stacked engine pads the batches of all clients to the same size. Batch normalization must exclude this padding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.networks import MobilenetSettings, ResnetSettings, VggSettings, WrnSettings

MOMENTUM = 0.1
#: Constant that is added to variances before the square root, as in PyTorch.
EPSILON = 1e-5
#: PyTorch's classes of batch normalization, which custom models may contain.
TORCH_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def initialize_convolutions(model: nn.Module) -> None:
    """Initialize all convolutions with weights from He et al.'s normal distribution and with biases of 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def make_norm(spec: ResnetSettings | WrnSettings | VggSettings | MobilenetSettings, channels: int) -> nn.Module:
    """Return the normalization layer that the setting ``model.norm`` selects, for ``channels`` channels."""
    if spec.norm == "group":
        return nn.GroupNorm(spec.groups, channels)
    return BatchNorm(channels)


class BatchNorm(nn.Module):
    """Batch normalization as in ``nn.BatchNorm2d``, with a ``mask`` that excludes padding samples from the statistics.

    The input has shape [B, C, H, W]. ``mask``, shape [B], is 1 for a real sample and 0 for a padding sample. If
    ``mask`` is None, all samples are real.

    In training mode, ``nn.BatchNorm2d`` raises an error for a batch with a single value per channel, such as one 1x1
    image. This class normalizes such a batch by the running statistics.
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
        """Return ``x``, shape [B, C, H, W], normalized per channel."""
        trains = self.training and x.numel() != x.shape[1]
        if trains and self.mask is not None:
            return self._masked(x, self.mask)
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, trains, MOMENTUM, EPSILON)

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
