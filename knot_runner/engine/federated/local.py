"""Functions of local training that several engines use: epoch order, augmentation and step counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from knot_runner.engine.examples import Augment, batch_count, sample_epoch
from knot_runner.engine.federated.cohort import Inference, LocalTraining, Recipe, Trained
from knot_runner.engine.seeds import generator

EngineRequest = LocalTraining | Inference
#: The result of a request.
Result = Trained | Tensor


@dataclass(frozen=True)
class Epoch:
    """One pass over a client's images.

    Attributes:
        trains: The parameters that are trained: "all", "head" or "body".
        order: The order of the n images, as indices into the client's images, int64, shape [n].
        crops: The augmentation of each image, shape [n, 3] (:func:`sample_epoch`). None without augmentation.
    """

    trains: str
    order: Tensor
    crops: Tensor | None


def epochs(request: LocalTraining, augment: Augment) -> Iterator[Epoch]:
    """Yield the epochs of all phases of a client's training.

    Each epoch has a random order and augmentation of the images. Random numbers depend only on (seed, round,
    client) and are therefore the same in every engine.
    """
    recipe = request.recipe
    draws = local_draws(request)
    for phase in recipe.phases:
        for _ in range(phase.epochs):
            sampled = sample_epoch(len(request.rows), recipe.batch_size, draws, recipe.drop_last, augment)
            yield Epoch(phase.trains, *sampled)


def local_draws(request: LocalTraining) -> torch.Generator:
    """Return a new random generator for the order and the augmentation of a client's examples in one round."""
    return generator(request.seed, "local", request.round, request.client)


def steps(recipe: Recipe, count: int) -> int:
    """Return the number of optimizer steps that a client with ``count`` examples takes in one round."""
    return batch_count(count, recipe.batch_size, recipe.drop_last) * recipe.epochs
