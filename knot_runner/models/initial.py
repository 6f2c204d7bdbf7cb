"""Initial weights of convolutions."""

from __future__ import annotations

from torch import nn


def initialise_convolutions(model: nn.Module) -> None:
    """He et al.'s normal weights, no bias."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
