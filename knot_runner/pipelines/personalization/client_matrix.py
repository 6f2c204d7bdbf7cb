"""Results of every client's model on every client's test examples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.methods.personalization.matrix import TestRows, count, matrix_measures
from knot_runner.metrics import Measures
from knot_runner.pipelines.clients import FederatedContext
from knot_runner.pipelines.scores import logits_of, one_model
from knot_runner.records import CLIENTS_FILE
from knot_runner.util.files import write_atomic


@dataclass(frozen=True)
class ClientMatrix:
    """K x K matrices for K clients. Entry (k, j) is a result of client k's model on client j's test examples.

    Attributes:
        examples: The number of test examples, int32 [K, K].
        correct: The number of correct predictions, int32 [K, K].
        loss: The sum of the losses over the test examples, in nats, float64 [K, K].
        global_correct: For each client, the number of its test examples that the global model predicts correctly, shape
            [K]. None if the method has no global model.
    """

    examples: Tensor
    correct: Tensor
    loss: Tensor
    global_correct: Tensor | None = None

    def measures(self, federation: Federation) -> Measures:
        """Return the metrics computed from the matrices; see :func:`matrix_measures`."""
        return matrix_measures(self.examples, self.correct, self.loss, federation.numbers, self.global_correct)

    def save(self, folder: Path) -> None:
        """Write the matrices into the run's ``folder``."""
        arrays = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
        write_atomic(folder / CLIENTS_FILE, tensor_parts(arrays))


def logits_on(run: FederatedContext, tests: TestRows, models: Iterable[tuple[int, ClientModel]]) -> Iterator[Tensor]:
    """Yield the logits [N, C] of each client's model on the N examples ``tests.rows``.

    ``models`` holds pairs of a client and its model. Only a few models are in memory at a time.
    """
    federation = run.federation

    def requests() -> Iterator[Inference]:
        shared: Sequence[Tensor] = []
        network = -1
        name = ""
        for client, model in models:
            body = federation.layout_of(client).body_parts(model.weights, model.buffers)
            request = federation.inference(client, model, tests.rows)
            if not name:
                network = request.network
                shared = body
                name = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in body)).hexdigest()
            # In FedPer and FedRep, clients share the body. The engine then computes the inputs of the heads only once.
            same = request.network == network and all(map(torch.equal, shared, body))
            yield replace(request, many=True, body=name if same else "")

    return logits_of(run, requests(), len(tests.rows) * run.classes + federation.layout.size)


def deployed_matrix(run: FederatedContext, state: FederatedState) -> ClientMatrix:
    """Return the results of every client's deployed model on the test examples of every client."""
    everyone = run.federation.everyone
    tests = TestRows.of(run.federation.rows("test"))
    labels = run.setup.test.labels[tests.rows]
    if one_model(run.method, run.config):
        (shared,) = logits_on(run, tests, [(0, run.deployed(state, 0))])
        outputs = iter([shared] * len(everyone))
    else:
        outputs = logits_on(run, tests, ((client, run.deployed(state, client)) for client in everyone))
    counts = [count(tests, logits, labels, client) for client, logits in zip(everyone, outputs, strict=True)]
    reference = None
    if "weights" in state:
        (logits,) = logits_on(run, tests, [(0, ClientModel(state["weights"], state["buffers"]))])
        reference = torch.stack([count(tests, logits, labels, client)[0][client] for client in everyone])
    correct, loss = map(torch.stack, zip(*counts, strict=True))
    return ClientMatrix(tests.examples(), correct, loss, reference)
