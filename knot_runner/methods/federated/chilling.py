"""Logit chilling (FLex&Chill, arXiv 2401.09986): local training with a softmax temperature, for every method.

For logits z, label y and temperature T, clients minimize CE(z / T, y), as in eq. 1. The gradient of this loss with
respect to z is (p_T - y) / T, where p_T = softmax(z / T), as in eq. 2.

Differences from the paper: the paper's experiments use a constant T. Temperatures that depend on the round, the client
or the sample follow proposals in the paper's discussion (section 5). See docs/papers/chill.md.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import torch

from knot_runner.config.settings.methods.federated import FederatedSettings, Schedule
from knot_runner.engine.federated.cohort import LocalTraining, Phase
from knot_runner.engine.objectives import CrossEntropy, Objective, cross_entropy
from knot_runner.engine.seeds import generator
from knot_runner.methods.federation import Federation


def scheduled(start: float, schedule: Schedule | None, round: int) -> float:
    """Return the temperature T of ``round``.

    T changes from ``start`` to ``schedule.end`` over ``schedule.rounds`` rounds. Without a schedule, T is ``start``.
    """
    if schedule is None:
        return start
    done = min(round / schedule.rounds, 1.0)
    if schedule.shape == "step":
        return schedule.end if done == 1 else start
    if schedule.shape == "exponential":
        return start * math.pow(schedule.end / start, done)
    share = done if schedule.shape == "linear" else (1 - math.cos(math.pi * done)) / 2
    return start + (schedule.end - start) * share


def stragglers(config: FederatedSettings, federation: Federation) -> set[int]:
    """Return the indices of the stragglers: the clients that are slow in every round.

    With ``by=speed``, stragglers are the slowest clients of the simulated fleet. Otherwise, they are drawn at random.
    """
    assert config.stragglers is not None
    count = len(federation.clients)
    if config.stragglers.by == "speed":
        assert federation.seconds_per_example is not None
        order = torch.argsort(federation.seconds_per_example, descending=True, stable=True)
    else:
        order = torch.randperm(count, generator=generator(federation.seed, "stragglers"))
    return set(order[: round(config.stragglers.share * count)].tolist())


def chilled(request: LocalTraining, config: FederatedSettings, federation: Federation) -> LocalTraining:
    """Return ``request`` with the loss CE(z / T, y), for logits z, labels y and temperature T (FLex&Chill eq. 1).

    Stragglers have their own T and number of epochs.

    ``lr_control`` selects a control experiment: the loss uses temperature 1, and the learning rate is divided by T.
    """
    recipe = request.recipe
    is_per_sample = config.hard_temperature is not None
    temperature = scheduled(config.temperature, config.schedule, request.round)
    if config.stragglers and request.client in stragglers(config, federation):
        temperature = config.stragglers.temperature
        if config.stragglers.epochs is not None:
            recipe = replace(recipe, phases=(Phase(config.stragglers.epochs),))
    if config.lr_control and not is_per_sample:
        # This scales the gradient by 1 / T, as chilling does. Unlike chilling, it uses the probabilities at T=1.
        recipe = replace(recipe, lr=recipe.lr / temperature)
        temperature = 1.0
    options = CrossEntropy(temperature, config.hard_temperature, config.lr_control and is_per_sample)
    return replace(request, recipe=recipe, objective=Objective(cross_entropy, asdict(options)))
