"""FedSoup (Chen et al. 2023): in later rounds, a client averages its model with global models that it selects.

A participant trains the received global model w; theta is the trained model. Each client has a pool of n earlier global
models with the mean P. After the fraction ``method.start`` of all rounds, the participant compares two averages of
models ("soups") on its held-out examples:

    (theta + n P) / (n + 1)    and    (theta + n P + w) / (n + 2)

If the second soup is more accurate, the client keeps and sends this soup, and adds w to its pool. Otherwise, the client
keeps and sends the first soup. As in the authors' code, running statistics are not averaged: the client keeps its own
running statistics.

Differences from the authors' code: our clients select on held-out examples, whereas the code selects on test examples.
We do not fine-tune after the last round.

State, in addition to FedAvg's:

- ``client/<k>/weights`` and ``client/<k>/buffers``: the client's last model
- ``client/<k>/pool`` [P]: the mean of the global models in the client's pool
- ``client/<k>/pool_size``: the number of these models
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from knot_runner.config.settings.methods.algorithms import FedsoupSettings
from knot_runner.engine.examples import forward_all
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import LocalProgram, LocalResult, LocalTraining
from knot_runner.engine.training import LocalWork
from knot_runner.methods.contract import ClientMessage, ClientWork
from knot_runner.methods.federated import averaging, ditto
from knot_runner.methods.federated.own_models import kept_means, model_parts, plan_with
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts

#: Batch size for the classification of held-out examples.
ROWS = 256


def init(config: FedsoupSettings, federation: Federation) -> FederatedState:
    """Return the state with the initial global model.

    Raises:
        UserError: A client has no held-out examples.
    """
    clients = federation.clients
    without = [clients[number].name for number in federation.numbers if not len(clients[number].valid)]
    if without:
        raise UserError(
            f"soups are selected on held-out examples, but {len(without)} of {len(federation.numbers)} clients have "
            f"none (first: {without[0]}). Use partition.valid=0.2, or more examples per client",
            "partition.valid",
        )
    return averaging.init(config, federation)


def keep(config: FedsoupSettings, state: FederatedState, federation: Federation, work: ClientWork) -> ClientMessage:
    """Return the model that the client sent, and the client's pool of global models."""
    return model_parts(work.trained[0]) | work.trained[0].kept


def _with_soup(
    config: FedsoupSettings, state: FederatedState, federation: Federation, request: LocalTraining
) -> LocalTraining:
    """Return ``request``, changed to select a soup after training in later rounds."""
    if request.round + 1 <= config.start * federation.training.rounds:
        return request
    client = request.client
    tensors = {
        "valid": federation.clients[client].valid,
        "pool": state.get(f"client/{client}/pool", torch.zeros_like(request.start.weights)),
        "pool_size": state.get(f"client/{client}/pool_size", torch.tensor(0)),
    }
    # costs two forward passes of the held-out examples; an epoch of training costs three of the training examples
    further = 2 * len(tensors["valid"]) / (3 * len(request.rows))
    return replace(request, program=LocalProgram(train_and_soup, {}, tensors, further))


def train_and_soup(settings: Facts, work: LocalWork) -> LocalResult:
    """Local program: train the received model, then select one of two soups (averages of models) by accuracy.

    Args:
        settings: Not used.
        work: The input tensors are:

            - ``pool`` [P]: the mean of the global models in the client's pool
            - ``pool_size``: the number of global models in the pool
            - ``valid`` [v]: the row numbers of held-out examples

    Returns:
        The mean training loss, and the new ``pool`` and ``pool_size``.
    """
    loss, steps = work.train()
    trained, buffers = flat.flat_vectors(work.model)
    pool = work.tensors["pool"]
    size = int(work.tensors["pool_size"])
    sent = work.request.start.weights.to(trained)
    soup = (trained + size * pool) / (size + 1)
    larger = (trained + size * pool + sent) / (size + 2)
    if _correct(work, larger, buffers) > _correct(work, soup, buffers):
        soup = larger
        pool = (size * pool + sent) / (size + 1)
        size = size + 1
    flat.load_flat(work.model, soup, buffers)
    return LocalResult(loss, steps, {"pool": pool, "pool_size": torch.tensor(size)})


def _correct(work: LocalWork, weights: Tensor, buffers: Tensor) -> int:
    """Return the number of held-out examples that the model with ``weights`` classifies correctly."""
    flat.load_flat(work.model, weights, buffers)
    examples = work.select(work.tensors["valid"])
    return int((forward_all(work.model, examples, ROWS).argmax(1) == examples.labels).sum())


FEDSOUP = replace(
    averaging.FEDAVG, init=init, plan=plan_with(_with_soup), deployed=ditto.deployed, keep=keep, one_model=False,
    observe=partial(kept_means, pool_size="pool_size"),
)  # fmt: skip
