"""Local training as every engine does it: random order and augmentation, normalised images, temperatures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from knot_runner.engine.federated.cohort import ImageData, LocalTraining, Recipe
from knot_runner.engine.seeds import generator

#: Pixels of reflected border from which augment=crop_flip crops.
BORDER = 4


@dataclass(frozen=True)
class Epoch:
    """One pass over the client's images: which parameters train, in which order, with which augmentation.

    ``order`` [n'] int64 positions in the client's rows (n' < n with drop_last); ``shifts`` [n', 2] and ``flips`` [n']
    are the augmentation of each, or None.
    """

    trains: str
    order: Tensor
    shifts: Tensor | None
    flips: Tensor | None


def epochs(request: LocalTraining, augment: str) -> Iterator[Epoch]:
    """The client's epochs, phase after phase, sampled from (seed, round, client): the same in every engine."""
    recipe, count = request.recipe, len(request.rows)
    draws = generator(request.seed, "local", request.round, request.client)
    kept = count // recipe.batch * recipe.batch if recipe.drop_last else count
    for phase in recipe.phases:
        for _ in range(phase.epochs):
            order = torch.randperm(count, generator=draws)[:kept]
            shifts = flips = None
            if augment == "crop_flip":
                shifts = torch.randint(0, 2 * BORDER + 1, (kept, 2), generator=draws)
                flips = torch.randint(0, 2, (kept,), generator=draws, dtype=torch.bool)
            yield Epoch(phase.trains, order, shifts, flips)


def steps(recipe: Recipe, count: int) -> int:
    """Optimiser steps of a client with ``count`` images."""
    batches = count // recipe.batch if recipe.drop_last else -(-count // recipe.batch)
    return batches * sum(phase.epochs for phase in recipe.phases)


def finite(weights: Tensor) -> list[bool]:
    """Whether each of ``weights`` [S, P] is finite throughout.

    A finite sum has finite terms alone: what is infinite or NaN stays so whatever is added. The sum of finite terms may
    overflow, so one that is not finite is checked value by value.
    """
    sums = weights.sum(1).tolist()
    return [math.isfinite(total) or bool(row.isfinite().all()) for total, row in zip(sums, weights, strict=True)]


def normalised(data: ImageData, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Images ``rows`` [n, C, H, W] as the model sees them, in ``dtype``."""
    pixels = data.pixels[rows]
    unit = 255.0 if data.pixels.dtype == torch.uint8 else 1.0
    mean, std = (value.to(pixels.device, dtype)[:, None, None] for value in (data.mean * unit, data.std * unit))
    return (pixels.to(dtype) - mean) / std


def augmented_images(images: Tensor, shifts: Tensor | None, flips: Tensor | None) -> Tensor:
    """``images`` [n, C, H, W] with a reflected border of 4, cropped at ``shifts`` and flipped where ``flips``."""
    if shifts is None or flips is None:
        return images
    height, width = images.shape[2:]
    wide = F.pad(images, (BORDER,) * 4, mode="reflect")
    shifts, flips = shifts.to(images.device), flips.to(images.device)
    down = shifts[:, :1] + torch.arange(height, device=images.device)
    across = torch.arange(width, device=images.device).expand(len(images), width)
    across = shifts[:, 1:] + torch.where(flips[:, None], width - 1 - across, across)
    items = torch.arange(len(images), device=images.device)[:, None, None]
    return wide.permute(0, 2, 3, 1)[items, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


def sample_temperatures(recipe: Recipe, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor] | None:
    """(T_i, scale_i), each [n], from the logits [n, C] of the client's images under its starting weights; None when
    all samples have ``recipe.temperature`` and scale 1.

    Hardness is 1 - p_i(truth), so T_i runs from ``temperature`` (surely right) to ``hard_temperature`` (surely wrong):
    the paper's discussion of per-sample temperatures, which leaves the measure open (ours).
    """
    if recipe.hard_temperature is None:
        return None
    hardness = 1 - torch.softmax(logits, 1).gather(1, labels[:, None])[:, 0]
    values = recipe.temperature + (recipe.hard_temperature - recipe.temperature) * hardness
    ones = torch.ones_like(values)
    return (ones, 1 / values) if recipe.per_sample_rate else (values, ones)
