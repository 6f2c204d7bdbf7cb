"""Logit chilling (FLex&Chill, arXiv 2401.09986): the temperature of a client's local training, for every method.

Constant is the paper's experiment; per round, per client and per sample are what its discussion (section 5) proposes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict

import torch

from knot_runner.config.settings import FederatedSettings, FedProxSettings, Schedule
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining
from knot_runner.engine.federated.recipe import Phase, Recipe
from knot_runner.engine.objectives import CrossEntropy, Objective, cross_entropy
from knot_runner.engine.seeds import generator
from knot_runner.methods.federation import Federation


def scheduled(start: float, schedule: Schedule | None, round: int) -> float:
    """T of ``round``: from ``start`` to ``schedule.end`` over ``schedule.rounds`` rounds, then constant."""
    if schedule is None:
        return start
    done = min(round / schedule.rounds, 1.0)
    if schedule.shape == "step":
        return schedule.end if done == 1 else start
    if schedule.shape == "exponential":
        factor: float = (schedule.end / start) ** done
        return start * factor
    share = done if schedule.shape == "linear" else (1 - math.cos(math.pi * done)) / 2
    return start + (schedule.end - start) * share


def stragglers(config: FederatedSettings, federation: Federation) -> set[int]:
    """The clients that are slow in the whole run, whatever their cluster: a share of all, drawn from the seed, or the
    slowest of the fleet."""
    assert config.stragglers is not None
    count = len(federation.clients)
    if config.stragglers.by == "speed":
        order = torch.argsort(federation.seconds_per_example, descending=True, stable=True)
    else:
        order = torch.randperm(count, generator=generator(federation.seed, "stragglers"))
    return set(order[: round(config.stragglers.share * count)].tolist())


def drawn_requests(
    config: FederatedSettings, federation: Federation, round: int, start: Callable[[int], ClientModel]
) -> list[LocalTraining]:
    """Returns the request of every participant of ``round``, from its model ``start(client)``; [] after the rounds."""
    if round >= federation.training.rounds:
        return []
    return [local_request(config, federation, round, client, start(client)) for client in federation.drawn(round)]


def local_request(
    config: FederatedSettings, federation: Federation, round: int, client: int, start: ClientModel
) -> LocalTraining:
    """Returns ``client``'s training request for ``round``, from the model ``start``."""
    return federation.local_training(client, round, start, *recipe_and_objective(config, federation, round, client))


def recipe_and_objective(
    config: FederatedSettings, federation: Federation, round: int, client: int
) -> tuple[Recipe, Objective]:
    """How ``client`` trains in ``round``, all parameters together, and on which loss: CE(z / T, y) (eq. 1). Stragglers
    have their own T and epochs.

    With ``lr_control`` the temperature goes into the rate: the gradient of CE(z / T) at the logits is (p_T - y) / T
    (eq. 2), so T=1 at rate lr / T has its scale and not its shape.
    """
    training, is_per_sample = federation.training, config.hard_temperature is not None
    temperature, epochs = scheduled(config.temperature, config.schedule, round), training.local_epochs
    if config.stragglers and client in stragglers(config, federation):
        temperature, epochs = config.stragglers.temperature, config.stragglers.epochs or epochs
    lr = training.lr
    if config.lr_control and not is_per_sample:
        lr, temperature = lr / temperature, 1.0
    recipe = Recipe(
        phases=(Phase(epochs),),
        batch_size=training.batch_size,
        drop_last=training.drop_last,
        lr=lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        decay_biases=training.decay_biases,
        proximal=config.mu if isinstance(config, FedProxSettings) else 0.0,
        frozen_statistics=config.batchnorm == "frozen",
        augment=federation.augment,
        optimizer=training.optimizer,
    )
    options = CrossEntropy(temperature, config.hard_temperature, config.lr_control and is_per_sample)
    return recipe, Objective(cross_entropy, asdict(options))
