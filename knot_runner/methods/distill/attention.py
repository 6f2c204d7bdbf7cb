"""Attention transfer: match the student's attention maps to the teacher's (Zagoruyko and Komodakis 2017)."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.config.settings.methods.terms import AttentionTermSettings
from knot_runner.methods.distill.term import (
    TERMS,
    Term,
    TermInputs,
    TermLoss,
    compared_taps,
    mean_over_teachers,
    unit_length,
)
from knot_runner.util.errors import UserError


def attention_map(maps: Tensor, p: float) -> Tensor:
    """Return the attention map of each example, shape [B, H * W], scaled to norm 1.

    ``maps`` holds the features A, shape [B, channels, H, W]. Before scaling, the map is the mean of ``|A|^p`` over the
    channels.
    """
    return unit_length(maps.abs().pow(p).mean(1).flatten(1))


def attention_distance(p: float, f: Tensor, g: Tensor) -> Tensor:
    """Return the squared difference between two networks' attention maps, averaged over positions, shape [B].

    ``f`` and ``g`` are feature maps of shape [B, channels, H, W]. If their sizes differ, they are first pooled to the
    smaller height and the smaller width.
    """
    height = min(f.shape[2], g.shape[2])
    width = min(f.shape[3], g.shape[3])
    student = attention_map(pooled_to(f, height, width), p)
    teacher = attention_map(pooled_to(g, height, width), p)
    return (student - teacher).square().mean(1)


def pooled_to(maps: Tensor, height: int, width: int) -> Tensor:
    """Return ``maps`` [B, channels, H, W] after adaptive average pooling to [B, channels, height, width]."""
    # as matrix products, because the gradient of torch's adaptive pooling is not deterministic on CUDA
    if maps.shape[2] != height:
        maps = _window_means(maps.shape[2], height).to(maps) @ maps
    if maps.shape[3] != width:
        maps = maps @ _window_means(maps.shape[3], width).to(maps).T
    return maps


def _window_means(size: int, smaller: int) -> Tensor:
    """Return a matrix [smaller, size] whose rows average windows that together cover all ``size`` positions."""
    return F.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64), smaller).T.contiguous()


def _make_at(options: AttentionTermSettings, inputs: TermInputs) -> TermLoss:
    for student_tap, f, other, g in compared_taps(inputs):
        for whose, tap, features in (("student", student_tap, f), ("teacher", other, g)):
            if features.dim() != 4:
                raise UserError(f"tap '{tap}' of the {whose} is a vector, not a feature map", "method.terms.at.taps")
    return partial(mean_over_teachers, inputs.pairs, partial(attention_distance, options.p))


TERMS.update(at=Term(AttentionTermSettings, _make_at, taps="maps"))
