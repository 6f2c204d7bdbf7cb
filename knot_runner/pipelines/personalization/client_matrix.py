"""The K x K record: results of every client's model on every client's test examples, with few logits in memory."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, Engine
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.methods.personalization.matrix import TestRows, count, matrix_measures
from knot_runner.pipelines.scores import one_model
from knot_runner.records import CLIENTS_FILE
from knot_runner.util.files import write_atomic

#: Values of models and of their logits that are held at a time, by at least so many models: each worker has some.
VALUES_AT_ONCE, FEWEST_AT_ONCE = 2**23, 8


@dataclass(frozen=True)
class ClientMatrix:
    """The K x K record of clients' models.

    ``examples``, ``correct`` (int32) and ``loss`` (float64, summed nats) [K, K]: client k's model (row) on client j's
    test examples (column). ``global_correct`` [K]: correct predictions of the global model, if the method has one.
    """

    examples: Tensor
    correct: Tensor
    loss: Tensor
    global_correct: Tensor | None = None

    def measures(self, federation: Federation) -> dict[str, float]:
        """Return the metrics computed from the record; see :func:`matrix_measures`."""
        return matrix_measures(self.examples, self.correct, self.loss, federation.numbers, self.global_correct)

    def save(self, folder: Path) -> None:
        """Write the matrices into the run's ``folder``."""
        arrays = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
        write_atomic(folder / CLIENTS_FILE, tensor_parts(arrays))


def logits_of(
    engine: Engine, tests: TestRows, models: Iterable[tuple[int, ClientModel]], classes: int, federation: Federation
) -> Iterator[tuple[int, Tensor]]:
    """Yield (client, logits [N, C] on ``tests.rows``) for every model, with a few models in memory at a time.

    Requests of models that share the first model's body, as in FedPer and FedRep, name this body.
    """
    values = len(tests.rows) * classes + federation.layout.size
    waiting, shared, name = iter(models), None, ""
    while part := list(itertools.islice(waiting, max(FEWEST_AT_ONCE, VALUES_AT_ONCE // values))):
        requests = []
        for client, model in part:
            body = federation.layout_of(client).body_parts(model.weights, model.buffers)
            number = federation.network_number(client)
            if shared is None:
                shared = number, body
                name = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in body)).hexdigest()
            same = shared[0] == number and all(map(torch.equal, shared[1], body))
            request = federation.inference(client, model, tests.rows)
            requests.append(replace(request, many=True, body=name if same else ""))
        for (client, _), logits in zip(part, engine.logits(requests), strict=True):
            yield client, logits


def deployed_matrix(
    method: RoundMethod,
    config: Any,
    state: FederatedState,
    federation: Federation,
    labels: Tensor,
    classes: int,
    engine: Engine,
) -> ClientMatrix:
    """Evaluate the models that clients deploy after a round. ``labels``: labels of all test examples."""
    tests = TestRows.of(federation.rows("test"))
    test_labels, everyone = labels[tests.rows], range(len(federation.clients))
    if one_model(method, config):
        shared = method.deployed(config, state, federation, 0)
        ((_, logits),) = logits_of(engine, tests, [(0, shared)], classes, federation)
        counts = [count(tests, logits, test_labels, client) for client in everyone]
    else:
        models = ((client, method.deployed(config, state, federation, client)) for client in everyone)
        outputs = logits_of(engine, tests, models, classes, federation)
        counts = [count(tests, logits, test_labels, client) for client, logits in outputs]
    reference = None
    if "weights" in state:
        whole = ClientModel(state["weights"], state["buffers"])
        ((_, logits),) = logits_of(engine, tests, [(0, whole)], classes, federation)
        right = logits.argmax(1) == test_labels
        reference = torch.stack([right[tests.own(client)].sum() for client in everyone]).int()
    correct, loss = map(torch.stack, zip(*counts, strict=True))
    return ClientMatrix(tests.examples(), correct, loss, reference)
