"""Functions of local training that all engines use: epoch order, augmentation and step counts.

:class:`RequestEngine` orders the requests of a cohort for workers, and divides inference into equal chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.examples import Augment, batch_count, sample_epoch
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, ROWS_OF_MANY, Inference, LocalTraining, Recipe, Trained
from knot_runner.engine.seeds import generator

EngineRequest = LocalTraining | Inference
#: The result of a request.
Result = Trained | Tensor


@dataclass(frozen=True)
class Epoch:
    """One pass over the client's images: the trained parameters, the order and the augmentation.

    ``order``, an int64 tensor of shape [n']: positions of the images among the client's n rows (n' < n if a smaller
    last batch is dropped). ``crops``, shape [n', 3]: the augmentation of each image (:func:`sample_epoch`), or None.
    """

    trains: str
    order: Tensor
    crops: Tensor | None


def epochs(request: LocalTraining, augment: Augment) -> Iterator[Epoch]:
    """Yield the client's epochs, phase after phase. Random draws are seeded by (seed, round, client) in all engines."""
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


class RequestEngine:
    """An engine that executes requests one by one, on workers or actors. A subclass defines :meth:`_run`."""

    device = torch.device("cpu")

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Implement :meth:`Engine.train`. The longest training runs start first.

        Short training runs then end last, so workers are idle for less time.
        """
        longest = sorted(range(len(cohort)), key=lambda i: -steps(cohort[i].recipe, len(cohort[i].rows)))
        results = self._run([cohort[i] for i in longest])
        return [result for _, result in sorted(zip(longest, results, strict=True), key=lambda pair: pair[0])]

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Implement :meth:`Engine.logits`, computed in chunks of examples.

        A chunk has INFERENCE_ROWS or ROWS_OF_MANY examples, regardless of the number of workers. Only the last chunk of
        a request may be smaller.
        """
        parts = [request.rows.split(ROWS_OF_MANY if request.many else INFERENCE_ROWS) for request in requests]
        pieces = [replace(request, rows=part) for request, rows in zip(requests, parts, strict=True) for part in rows]
        outputs = iter(self._run(pieces))
        return [torch.cat([next(outputs) for _ in rows]) for rows in parts]

    def _run(self, requests: list[Any]) -> list[Any]:
        """Execute ``requests``, starting them in order; return the results in the same order."""
        raise NotImplementedError
