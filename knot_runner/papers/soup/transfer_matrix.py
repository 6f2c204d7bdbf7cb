"""The transfer matrix lambda, learned on held-out examples: client k deploys ``W_k = W_0 + sum_i lambda_ki dW_i``.

W_0 is a client's model after the last round. dW_i is the update that client i computes by training W_0 on its own
examples. The loss L_k(W_k) is the cross-entropy on client k's held-out examples (``partition.valid``). lambda [K, K] is
learned by gradient descent with the gradient ``dL_k / dlambda_ki = <grad_W L_k(W_k), dW_i>``. Related methods: FedFomo
(Zhang et al. 2021), APPLE (Luo & Wu 2022), task arithmetic (Ilharco et al. 2023).

Round 0 of the personalization trains all clients. Every later round updates lambda by one step. The state has these
arrays for K clients:

- ``theta/weights`` [K, P], ``theta/buffers`` [K, Q]: the P weights and Q buffers of each client's model after round 0
- ``lambda`` [K, K], float64: the current lambda
- ``kept/lambda`` [K, K], float64: the lambda to deploy
- ``kept/step`` [1], ``kept/loss`` [1]: the step that gave ``kept/lambda``, and its loss
- ``scale`` [1]: the largest eigenvalue of the Gram matrix <dW_i, dW_j> of the updates
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, LocalTraining, Trained
from knot_runner.engine.objectives import Objective
from knot_runner.engine.seeds import generator
from knot_runner.methods.federated.own_models import init
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow
from knot_runner.methods.personalization.combine import Updates, client_models, matrix_facts, stacked_models
from knot_runner.methods.personalization.contract import (
    Finished,
    MeasuredModels,
    PersonalFederation,
    Personalization,
    Point,
    personal_recipe,
    personal_training,
    train_all,
    with_trained,
)
from knot_runner.papers.soup.settings import TransferMatrixSettings
from knot_runner.util.errors import UserError

#: Learning rate of the single SGD step over all examples that yields a gradient, (start - end) / rate. The rate is so
#: large that rounding of the weights does not affect the gradient, and a power of 2, so that the division is exact.
GRADIENT_RATE = 2.0**30


def start_matrix(config: TransferMatrixSettings, clients: int) -> Tensor:
    """Return the initial lambda, float64 [K, K]: the zero or the identity matrix, as ``config.start`` selects.

    With the zero matrix, client k starts from W_0. With the identity matrix, it starts from its own trained model.
    """
    if config.start == "identity":
        return torch.eye(clients, dtype=torch.float64)
    return torch.zeros(clients, clients, dtype=torch.float64)


def matrix_step(config: TransferMatrixSettings, matrix: Tensor, gradient: Tensor, scale: float) -> Tensor:
    """Return lambda after one step of gradient descent with learning rate ``matrix_lr / scale``.

    ``scale`` is the largest eigenvalue of the Gram matrix <dW_i, dW_j>. If ``config.signed`` is false, negative entries
    of the result become 0.
    """
    # The curvature of the loss in lambda is proportional to ``scale``.
    stepped = matrix - config.matrix_lr * (gradient / scale)
    return stepped if config.signed else stepped.clamp(min=0)


def gradient_request(
    config: TransferMatrixSettings, federation: PersonalFederation, client: int, round: int, model: ClientModel,
    rows: Tensor, rate: float,
) -> LocalTraining:  # fmt: skip
    """Return the request for one SGD step of ``model`` on the examples ``rows``, with learning rate ``rate``.

    The result gives a loss and a gradient. The loss is the mean cross-entropy before the step. The gradient is the
    decrease of the weights, divided by ``rate``. Running statistics do not change.
    """
    recipe = replace(
        personal_recipe(config, federation, client, epochs=1),
        batch_size=len(rows),
        drop_last=False,
        lr=rate,
        frozen_statistics=True,
        augment="none",
        optimizer="sgd",
    )
    return replace(personal_training(federation, client, round, model, recipe), rows=rows, objective=Objective())


def held_out_rows(config: TransferMatrixSettings, federation: Federation, client: int) -> tuple[Tensor, Tensor]:
    """Return two tensors of row numbers of held-out examples: one for learning lambda, and one for early stopping.

    Without ``early_stop``, all held-out examples are used for learning. With ``early_stop``, the examples are split at
    random into two halves, seeded by (seed, client). If the halves are unequal, the half for learning is larger.
    """
    rows = federation.clients[client].valid
    if not config.early_stop:
        return rows, rows[:0]
    order = torch.randperm(len(rows), generator=generator(federation.seed, "early stop", client))
    learned = math.ceil(len(rows) / 2)
    return rows[order[:learned]], rows[order[learned:]]


def _check(config: TransferMatrixSettings, federation: Federation) -> list[str]:
    sizes = list(map(len, federation.rows("valid")))
    if not any(sizes):
        raise UserError(
            "the matrix lambda is trained on held-out examples, but no client has any. Use partition.valid=0.2",
            "partition.valid",
        )
    if config.early_stop and max(sizes) < 2:
        raise UserError(
            "early stopping needs a client with at least two held-out examples. Use false",
            "method.personalization.early_stop",
        )
    notes = ["method.personalization: each client sends its update and, at each step, a gradient on its examples"]
    if not all(sizes):
        notes.append(
            f"partition.valid: {sizes.count(0)} clients have no held-out examples, so their rows of lambda are "
            "not trained"
        )
    return notes


def _plan(
    config: TransferMatrixSettings, state: FederatedState, federation: PersonalFederation, round: int
) -> list[LocalTraining]:
    """Return the training requests of all clients in round 0, and gradient requests at the current lambda afterwards.

    Early stopping needs one more round to evaluate the loss of the last lambda.
    """
    if round == 0:
        return train_all(config, federation, 0, federation.starts)
    if round >= _rounds(config, federation):
        return []
    requests = []
    for client, model in enumerate(matrix_models(federation, state, state["lambda"])):
        learned, stopping = held_out_rows(config, federation, client)
        if len(learned) and round <= config.steps:
            requests.append(gradient_request(config, federation, client, round, model, learned, GRADIENT_RATE))
        if len(stopping):
            requests.append(gradient_request(config, federation, client, round, model, stopping, 0.0))
    return requests


def _fold(
    config: TransferMatrixSettings, state: FederatedState, federation: PersonalFederation, round: int,
    requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    if round == 0:
        models = stacked_models([result.model for result in trained])
        start = start_matrix(config, len(trained))
        # largest eigenvalue of the Gram matrix <dW_i, dW_j>; 1 if all updates are 0
        scale = float(torch.linalg.eigvalsh(_updates(federation, models).products())[-1]) or 1.0
        matrix = {"lambda": start, "scale": torch.tensor([scale], dtype=torch.float64)}
        return with_trained(state, models | matrix | _kept(start, 0, math.inf), trained)
    learned = []
    stopping = []
    for request, result in zip(requests, trained, strict=True):
        if request.recipe.lr:
            learned.append((request, result))
        else:
            stopping.append(result.loss)
    row: RoundRow = {}
    matrix = state["lambda"]
    if stopping:
        row["stop_loss"] = loss = sum(stopping) / len(stopping)
        if loss < float(state["kept/loss"]):
            state = {**state, **_kept(matrix, round - 1, loss)}
    if learned:
        row["valid_loss"] = sum(result.loss for _, result in learned) / len(learned)
        gradient = matrix_gradient(federation, state, learned)
        stepped = matrix_step(config, matrix, gradient, float(state["scale"]))
        state = {**state, "lambda": stepped}
        if not stopping:
            state |= _kept(stepped, round, math.inf)
    return state, row


def _kept(matrix: Tensor, step: int, loss: float) -> FederatedState:
    """Return the state entries that mark ``matrix`` as the lambda to deploy."""
    return {
        "kept/lambda": matrix.clone(),
        "kept/step": torch.tensor([step]),
        "kept/loss": torch.tensor([loss], dtype=torch.float64),
    }


def matrix_gradient(
    federation: PersonalFederation, state: FederatedState, learned: list[tuple[LocalTraining, Trained]]
) -> Tensor:
    """Return the gradient ``dL_k / dlambda_ki = <grad_W L_k(W_k), dW_i>`` for K clients, float64 [K, K].

    ``learned`` holds each gradient request with its result. If client k has no request, row k is 0.
    """
    moved = [(request.start.weights, result.weights) for request, result in learned]
    products = _updates(federation, state).products(moved)
    gradient = torch.zeros_like(state["lambda"])
    for (request, _), of_client in zip(learned, products, strict=True):
        gradient[request.client] = of_client / GRADIENT_RATE
    return gradient


def matrix_models(federation: PersonalFederation, state: FederatedState, matrix: Tensor) -> list[ClientModel]:
    """Return each client's model W_k, computed with ``matrix`` as lambda.

    The running statistics are those of the client's model after round 0 of the personalization.
    """
    return client_models({**state, "theta/weights": _updates(federation, state).applied(matrix)})


def _updates(federation: PersonalFederation, state: FederatedState) -> Updates:
    return Updates.of([start.weights for start in federation.starts], state["theta/weights"])


def _rounds(config: TransferMatrixSettings, federation: PersonalFederation) -> int:
    return 1 + config.steps + int(config.early_stop)


def _points(config: TransferMatrixSettings) -> list[Point]:
    """Return the evaluated points: the trained models, the models at the initial lambda, and each checkpoint."""
    every = config.steps // config.checkpoints
    trained = Point(0, config.epochs, phase="trained")
    start = trained if config.start == "identity" else Point(0, 0, 0.0)
    later = [Point(step, config.epochs, phase="combined") for step in range(every, config.steps + 1, every)]
    return [trained, start, *later]


def _measured(
    config: TransferMatrixSettings, federation: PersonalFederation, state: FederatedState, round: int
) -> MeasuredModels:
    if round == 0:
        trained = starts = client_models(state)
        if config.start == "zero":
            starts = federation.starts
        yield 0, dict(enumerate(trained))
        yield 1, dict(enumerate(starts))
    done = round - int(config.early_stop)
    every = config.steps // config.checkpoints
    if done > 0 and done % every == 0:
        yield 1 + done // every, dict(enumerate(matrix_models(federation, state, state["kept/lambda"])))


def _finish(
    config: TransferMatrixSettings, federation: PersonalFederation, state: FederatedState, losses: Any
) -> Finished:
    matrix = state["kept/lambda"]
    facts = {
        **matrix_facts(matrix, federation.groups),
        "step": int(state["kept/step"]),
        "scale": float(state["scale"]),
        "leaves": ["model", "gradients on held-out examples"],
    }
    arrays = {"lambda": matrix}
    if federation.groups is not None:
        arrays |= {"groups": torch.tensor(federation.groups)}
    return arrays, {"transfer": facts}


TRANSFER_MATRIX = Personalization(init, _plan, _fold, _rounds, _points, _measured, _finish, check=_check)
