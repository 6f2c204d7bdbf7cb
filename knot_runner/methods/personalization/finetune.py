"""Fine-tuning: every client continues to train theta_0, its model of the last round, on its own training examples.

Client k minimizes f_k(theta) + prox ||theta - theta_0||^2, starting from theta_0 (docs/papers/soup.md). f_k is the same
objective as in the rounds, including the temperature. To limit memory, groups of clients train one after another.

State: ``theta/<k>/weights`` and ``theta/<k>/buffers`` of the clients in training.
"""

from __future__ import annotations

import math
from dataclasses import replace

from knot_runner.config.settings.methods.personalization import TuningSettings
from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.methods.federated.own_models import init, kept_models
from knot_runner.methods.federation import FederatedState, Folded
from knot_runner.methods.personalization.contract import (
    MeasuredModels,
    PersonalFederation,
    Personalization,
    Point,
    personal_recipe,
    personal_training,
    with_trained,
)

#: Maximum total number of parameters of the clients that train at the same time. At least ``FEWEST`` clients do.
PARAMETERS_AT_ONCE = 2**22
FEWEST = 8


def plan(
    config: TuningSettings, state: FederatedState, federation: PersonalFederation, round: int
) -> list[LocalTraining]:
    """Return one request for each client that trains in ``round``. The client trains until its next checkpoint."""
    step = round % config.checkpoints
    clients = under_way(config, federation, round)
    return [finetune_request(config, federation, state, client, step) for client in clients]


def fold(
    config: TuningSettings, state: FederatedState, federation: PersonalFederation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Return the state with the models in ``trained``, and a log entry with the mean training loss."""
    return with_trained(state, kept_models(trained, "theta"), trained)


def finetune_request(
    config: TuningSettings, federation: PersonalFederation, state: FederatedState, client: int, step: int
) -> LocalTraining:
    """Return the request to train one client from checkpoint ``step`` to the next checkpoint.

    The client's loss includes the penalty ``prox * ||theta - theta_0||^2``. The gradient of this penalty has two parts.
    The request's proximal term adds ``2 prox (theta - theta_c)``; theta_c is the model at checkpoint ``step``. The
    request's ``control`` adds ``2 prox (theta_c - theta_0)``.
    """
    origin = federation.start(client)
    start = current(state, client) if step else origin
    recipe = replace(personal_recipe(config, federation, client, config.part), proximal=2 * config.prox)
    request = personal_training(federation, client, step, start, recipe)
    if not config.prox or not step:
        return request
    return replace(request, control=2 * config.prox * (start.weights - origin.weights))


def current(state: FederatedState, client: int) -> ClientModel:
    """Return the current model of ``client`` from ``state``."""
    return ClientModel(state[f"theta/{client}/weights"], state[f"theta/{client}/buffers"])


def under_way(config: TuningSettings, federation: PersonalFederation, round: int) -> list[int]:
    """Return the client numbers of the clients that train in ``round``; [] when all clients have finished."""
    size = _at_once(federation)
    first = round // config.checkpoints * size
    return list(federation.everyone[first : first + size])


def finetune_rounds(config: TuningSettings, federation: PersonalFederation) -> int:
    """Return the number of rounds after which all clients have completed their epochs."""
    return math.ceil(len(federation.clients) / _at_once(federation)) * config.checkpoints


def _at_once(federation: PersonalFederation) -> int:
    return max(FEWEST, PARAMETERS_AT_ONCE // federation.layout.size)


def finetune_points(config: TuningSettings) -> list[Point]:
    """Return one point for theta_0 (the model before fine-tuning), and one point for each checkpoint."""
    return [Point(step, step * config.part, alpha=float(step > 0)) for step in range(config.checkpoints + 1)]


def finetune_models(
    config: TuningSettings, federation: PersonalFederation, state: FederatedState, round: int
) -> MeasuredModels:
    """Return the models to evaluate after ``round``; see ``measured`` of :class:`Personalization`."""
    step = round % config.checkpoints
    clients = under_way(config, federation, round)
    if step == 0:
        yield 0, {client: federation.start(client) for client in clients}
    yield step + 1, {client: current(state, client) for client in clients}


FINETUNE = Personalization(init, plan, fold, finetune_rounds, finetune_points, finetune_models)
