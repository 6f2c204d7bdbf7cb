"""Clients' training after the rounds: as in the rounds, with its own learning rate, optimiser and number of epochs."""

from __future__ import annotations

import dataclasses
from typing import Any

from knot_runner.config.settings import LocalSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Phase, Recipe
from knot_runner.methods.federated import chilling
from knot_runner.methods.personalisation.contract import PersonalFederation


def personal_recipe(hp: LocalSettings, federation: PersonalFederation, client: int, epochs: int) -> Recipe:
    """SGD without momentum and weight decay (or AdamW) at its ``rate``; temperature, batches and augmentation are those
    of the last round."""
    training = federation.training
    whole = chilling.recipe(federation.hp, federation, training.rounds, client)
    return dataclasses.replace(
        whole,
        phases=(Phase(epochs),),
        batch=hp.batch or whole.batch,
        lr=hp.rate * (whole.lr / training.lr),  # with lr_control the temperature is in the rate
        momentum=0.0,
        weight_decay=0.0,
        proximal=0.0,
        optimiser=hp.optimiser,
    )


def personal_training(
    federation: PersonalFederation, client: int, step: int, start: ClientModel, recipe: Recipe
) -> LocalTraining:
    """One client's training from ``start``; its draws are those of ``step``, apart from those of the rounds."""
    round = federation.training.rounds + 1 + step
    objective = chilling.objective(federation.hp, federation, federation.training.rounds, client)
    return federation.local_training(client, round, start, recipe, objective, measured=False)


def start_requests(hp: Any, federation: PersonalFederation) -> list[LocalTraining]:
    """Every client's ``epochs`` from its model of the last round."""
    return [
        personal_training(
            federation, client, 0, federation.start(client), personal_recipe(hp, federation, client, hp.epochs)
        )
        for client in federation.everyone
    ]
