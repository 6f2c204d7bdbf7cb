"""Losses of images synthesised from a teacher, on pixels, activations and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knot_runner.config.settings.methods.distil import GeneratorSynthesis
from knot_runner.methods.distil.term import NetworkOutputs


def total_variation(x: Tensor) -> Tensor:
    """Mean squared difference of neighbouring pixels of ``x`` [B, C, H, W], below and beside each other, []."""
    return (x[:, :, 1:] - x[:, :, :-1]).square().mean() + (x[..., 1:] - x[..., :-1]).square().mean()


def image_prior(x: Tensor, tv: float, l2: float) -> Tensor:
    """``tv`` times the total variation and ``l2`` times the mean square of normalised images ``x`` [B, C, H, W], []."""
    return tv * total_variation(x) + l2 * x.square().mean()


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """The model's modules with running statistics, in forward order of their definition."""
    return [module for module in model.modules() if getattr(module, "running_mean", None) is not None]


@contextmanager
def statistics_losses(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the block, each forward pass appends to the list, for every batch normalisation, the squared differences
    of its input's mean and (biased) variance per channel from the running ones, summed over channels, []."""
    found: list[Tensor] = []

    def compare(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].transpose(0, 1).flatten(1)
        mean = (values.mean(1) - module.running_mean).square().sum()
        found.append(mean + (values.var(1, correction=0) - module.running_var).square().sum())

    hooks = [module.register_forward_pre_hook(compare) for module in batch_norms(model)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def activation_difference(taps: dict[str, Tensor], wanted: dict[str, Tensor], scales: dict[str, float]) -> Tensor:
    """Mean squared difference of activations [B, ...] from the ``wanted`` ones [B, D], each tap's over its scale (the
    mean variance of its elements), summed over taps, []."""
    parts = [(taps[name].flatten(1) - wanted[name]).square().mean() / scales[name] for name in wanted]
    return torch.stack(parts).sum()


def generator_loss(outputs: NetworkOutputs, features: str, weights: GeneratorSynthesis) -> Tensor:
    """DAFL's loss of a batch of generated images, []: cross-entropy of the teacher's logits with their own argmax, less
    the mean size of its ``features``, less the entropy (in nats) of its mean probabilities."""
    certain = F.cross_entropy(outputs.logits, outputs.logits.argmax(1))
    active = outputs.taps[features].abs().mean()
    mean = outputs.logits.softmax(1).mean(0)
    mean = mean.clamp_min(torch.finfo(mean.dtype).tiny)  # the slope of p log p at 0 is infinite
    entropy = -(mean * mean.log()).sum()
    return weights.one_hot * certain - weights.activation * active - weights.entropy * entropy
