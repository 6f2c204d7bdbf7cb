"""Measures the models of clients on the test examples of all clients, a bounded number of logits at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, Engine
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.methods.client_matrix import TestRows, count, matrix_measures
from knot_runner.methods.contract import Method
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.pipelines.rounds.scores import one_model
from knot_runner.records import CLIENTS_FILE
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

#: Values of models and of their logits that are held at a time, by at least so many models: each worker has some.
VALUES_AT_ONCE, FEWEST_AT_ONCE = 2**23, 8


@dataclass(frozen=True)
class ClientMatrix:
    """``examples``, ``correct`` (int32) and ``loss`` (float64, summed nats) [K, K]: client k's model (row) on client
    j's test examples (column); ``global_correct`` [K]: the global model's, where there is one."""

    examples: Tensor
    correct: Tensor
    loss: Tensor
    global_correct: Tensor | None = None

    def measures(self, federation: Federation) -> dict[str, float]:
        """See :func:`matrix_measures`."""
        return matrix_measures(self.examples, self.correct, self.loss, federation.numbers, self.global_correct)

    def save(self, folder: Path) -> None:
        """Write the matrices into the run's ``folder``."""
        arrays = {"examples": self.examples, "correct": self.correct, "loss": self.loss}
        if self.global_correct is not None:
            arrays["global_correct"] = self.global_correct
        write_atomic(folder / CLIENTS_FILE, tensor_parts(arrays))


def check_own_models(spec: Any, federation: Federation) -> None:
    """Raises :class:`UserError` where clients' models cannot be measured on other clients' examples; ``spec``: the
    settings of personalisation, if any."""
    key, clients = "evaluate.matrix" if spec is None else "method.personalisation", len(federation.clients)
    if len(federation) < 2:
        raise UserError(f"{key}: one client has no others to be measured on; null is right")
    having = [client for client in federation.numbers if len(federation.clients[client].test)]
    if len(having) < 2:
        raise UserError(f"{key}: {len(having)} of {len(federation)} clients have test examples; at least 2 are needed")
    outside = [client for client in getattr(spec, "clients", None) or [] if client >= clients]
    if outside:
        raise UserError(
            f"method.personalisation.clients: there is no client {outside[0]}; the {clients} are 0 to {clients - 1}"
        )


def untested_notes(federation: Federation) -> list[str]:
    """A note on the clients without test examples, of whom a record says nothing; none where all have some."""
    without = [client.name for client in federation.clients if not len(client.test)]
    if not without:
        return []
    names = ", ".join(without[:3]) + (", ..." if len(without) > 3 else "")
    return [
        f"no test examples at {len(without)} of {len(federation.clients)} clients ({names}): they have no ID accuracy, "
        "and are not in the others' OOD accuracy"
    ]


def logits_of(
    engine: Engine, tests: TestRows, models: Iterable[tuple[int, ClientModel]], classes: int, federation: Federation
) -> Iterator[tuple[int, Tensor]]:
    """Yields (client, logits [N, C] on ``tests.rows``) of every model, holding a few models in memory at a time."""
    values = len(tests.rows) * classes + federation.layout.size
    waiting, bodies = iter(models), _Bodies(federation)
    while part := list(itertools.islice(waiting, max(FEWEST_AT_ONCE, VALUES_AT_ONCE // values))):
        requests = []
        for client, model in part:
            request = federation.inference(client, model, tests.rows)
            requests.append(dataclasses.replace(request, many=True, body=bodies.name(client, model)))
        for (client, _), logits in zip(part, engine.logits(requests), strict=True):
            yield client, logits


class _Bodies:
    """Recognises models that share the first model's body, as in FedPer and FedRep, where only heads are personal."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._first: tuple[int, list[Tensor]] | None = None
        self._name = ""

    def name(self, client: int, model: ClientModel) -> str:
        """Returns the digest of the first model's body where ``model`` shares it, otherwise ""."""
        number = self._federation.network_number(client)
        parts = self._federation.layout_of(client).body_parts(model.weights, model.buffers)
        if self._first is None:
            self._first = number, parts
            content = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts))
            self._name = content.hexdigest()
        first, others = self._first
        same = first == number and all(map(torch.equal, others, parts))
        return self._name if same else ""


def deployed_matrix(
    method: Method, hp: Any, state: FederatedState, federation: Federation, labels: Tensor, classes: int, engine: Engine
) -> ClientMatrix:
    """Measures the models deployed to clients after a round; ``labels`` [all test examples]."""
    tests = TestRows.of(federation.rows("test"))
    own, everyone = labels[tests.rows], range(len(federation.clients))
    if one_model(method, hp):
        shared = method.deployed(hp, state, federation, 0)
        ((_, logits),) = logits_of(engine, tests, [(0, shared)], classes, federation)
        counts = [count(tests, logits, own, client) for client in everyone]
    else:
        models = ((client, method.deployed(hp, state, federation, client)) for client in everyone)
        outputs = logits_of(engine, tests, models, classes, federation)
        counts = [count(tests, logits, own, client) for client, logits in outputs]
    reference = None
    if "weights" in state:
        whole = ClientModel(state["weights"], state["buffers"])
        ((_, logits),) = logits_of(engine, tests, [(0, whole)], classes, federation)
        right = logits.argmax(1) == own
        reference = torch.stack([right[tests.own(client)].sum() for client in everyone]).int()
    correct, loss = torch.stack([one.correct for one in counts]), torch.stack([one.loss for one in counts])
    return ClientMatrix(tests.examples(), correct, loss, reference)
