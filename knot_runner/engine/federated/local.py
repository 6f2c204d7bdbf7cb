"""Local training common to all engines: the order and augmentation of epochs, steps, finite weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.engine.examples import Augment, batch_count, sample_epoch
from knot_runner.engine.federated.cohort import LocalTraining, Recipe
from knot_runner.engine.seeds import generator


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


def epochs(request: LocalTraining, augment: Augment) -> Iterator[Epoch]:
    """The client's epochs, phase after phase, sampled from (seed, round, client): the same in every engine."""
    recipe = request.recipe
    draws = local_draws(request)
    for phase in recipe.phases:
        for _ in range(phase.epochs):
            sampled = sample_epoch(len(request.rows), recipe.batch, draws, recipe.drop_last, augment)
            yield Epoch(phase.trains, *sampled)


def local_draws(request: LocalTraining) -> torch.Generator:
    """Returns the generator of a client's batch orders and augmentations."""
    return generator(request.seed, "local", request.round, request.client)


def steps(recipe: Recipe, count: int) -> int:
    """Optimiser steps of a client with ``count`` examples."""
    return batch_count(count, recipe.batch, recipe.drop_last) * sum(phase.epochs for phase in recipe.phases)


def finite(weights: Tensor) -> list[bool]:
    """Whether each of ``weights`` [S, P] is finite throughout.

    A finite sum has finite terms alone: what is infinite or NaN stays so whatever is added. The sum of finite terms may
    overflow, so one that is not finite is checked value by value.
    """
    sums = weights.sum(1).tolist()
    return [math.isfinite(total) or bool(row.isfinite().all()) for total, row in zip(sums, weights, strict=True)]
