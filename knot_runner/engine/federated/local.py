"""Functions of local training that all engines use: epoch order, augmentation and step counts."""

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
    """One pass over the client's images: which parameters are trained, and the order and augmentation of the images.

    ``order``, an int64 tensor of shape [n']: positions of the images among the client's n rows (n' < n if a smaller
    last batch is dropped). ``crops``, shape [n', 3]: the augmentation of each image (:func:`sample_epoch`), or None.
    """

    trains: str
    order: Tensor
    crops: Tensor | None


def epochs(request: LocalTraining, augment: Augment) -> Iterator[Epoch]:
    """Yield the epochs of all phases, in order. All engines seed the random draws by (seed, round, client)."""
    recipe = request.recipe
    draws = local_draws(request)
    for phase in recipe.phases:
        for _ in range(phase.epochs):
            sampled = sample_epoch(len(request.rows), recipe.batch_size, draws, recipe.drop_last, augment)
            yield Epoch(phase.trains, *sampled)


def local_draws(request: LocalTraining) -> torch.Generator:
    """Return the generator of a client's batch orders and augmentations."""
    return generator(request.seed, "local", request.round, request.client)


def steps(recipe: Recipe, count: int) -> int:
    """Return the number of optimizer steps of a client with ``count`` examples."""
    return batch_count(count, recipe.batch_size, recipe.drop_last) * sum(phase.epochs for phase in recipe.phases)
