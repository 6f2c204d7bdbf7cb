"""Metrics of one round.

Each row of ``rounds.jsonl`` has the metrics of the deployed models on the clients' test examples. Runs are selected by
the metrics on the clients' validation examples (``partition.valid``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from knot_runner import metrics
from knot_runner.engine.federated.cohort import ClientModel, Engine, Inference, LocalTraining, Trained
from knot_runner.methods.contract import RoundMethod
from knot_runner.methods.federated.chilling import scheduled
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.util.errors import DivergedError, UserError, counted
from knot_runner.util.files import Facts, LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients import Setup


@dataclass(frozen=True)
class TestPredictions:
    """Predictions of the deployed models.

    ``logits`` [M, C], ``labels`` [M]: for all test examples. ``clients``: accuracy of each client's model on its own
    examples (None without test examples). ``unseen``: accuracy of clients that never take part; their examples are not
    in ``logits``.
    """

    logits: Tensor
    labels: Tensor
    clients: list[float | None]
    unseen: list[float | None] = field(default_factory=list)


#: Values of clients' own models that are held at a time, by at least so many models: each worker has some.
VALUES_AT_ONCE, FEWEST_AT_ONCE = 2**24, 8
#: Facts of a round in which nobody trained: no mean over participants.
NO_WORK: LogRow = {
    "participants": [], "before": [], "after": [], "train_loss": None, "train_temperature": None, "steps": 0
}  # fmt: skip


def predict_test(
    method: RoundMethod, config: Any, state: FederatedState, federation: Federation, labels: Tensor, engine: Engine
) -> TestPredictions:
    """Run inference on the test examples: a global model once on all of them, clients' own models on their own.

    ``labels`` [N]: labels of all test examples.
    """
    clients = [*federation.numbers, *federation.unseen]
    test_rows, seen = [federation.clients[client].test for client in clients], len(federation)
    if one_model(method, config):
        model = method.deployed(config, state, federation, 0)
        for client in clients:
            _check_same(model, method.deployed(config, state, federation, client), config)
        logits = engine.logits([Inference(model, torch.arange(len(labels)))])[0]
        right = logits.argmax(1) == labels
        hits = [right[rows] for rows in test_rows]
        if federation.unseen:
            logits, labels = logits[torch.cat(test_rows[:seen])], labels[torch.cat(test_rows[:seen])]
    else:
        parts = list(_own_logits(method, config, state, federation, clients, engine))
        hits = [part.argmax(1) == labels[rows] for part, rows in zip(parts, test_rows, strict=True)]
        logits, labels = torch.cat(parts[:seen]), labels[torch.cat(test_rows[:seen])]
    accuracies = [float(hit.double().mean()) if len(hit) else None for hit in hits]
    return TestPredictions(logits, labels, accuracies[:seen], accuracies[seen:])


def _check_same(model: ClientModel, other: ClientModel, config: Any) -> None:
    """Raise :class:`UserError` if two clients have different models although the method declares one model.

    Otherwise the accuracy would be attributed to the wrong model.
    """
    if model.weights is not other.weights and not torch.equal(model.weights, other.weights):
        problem = "the clients use different models, but one_model=True. Register the method with one_model=False"
        raise UserError(problem, f"method.algorithm={config.algorithm}")


def _own_logits(
    method: RoundMethod, config: Any, state: FederatedState, federation: Federation, clients: list[int], engine: Engine
) -> Iterator[Tensor]:
    """Yield the logits of each client's model on its own test examples, with a few models in memory at a time."""
    at_once = max(FEWEST_AT_ONCE, VALUES_AT_ONCE // federation.layout.size)
    for first in range(0, len(clients), at_once):
        part = clients[first : first + at_once]
        models = [method.deployed(config, state, federation, client) for client in part]
        test_rows = [federation.clients[client].test for client in part]
        yield from engine.logits([federation.inference(*asked) for asked in zip(part, models, test_rows, strict=True)])


def one_model(method: RoundMethod, config: Any) -> bool:
    """Return whether all clients use the same model."""
    return method.one_model and config.batchnorm != "local"


def score(
    predictions: TestPredictions, federation: Federation, temperature: float, coordinates: list[list[float]] | None
) -> LogRow:
    """Return every metric that is defined for the run, and the clients' accuracies.

    Semantic distance is defined if classes have coordinates. The loss is computed from logits / T at ``temperature``,
    recorded as ``test_temperature``. Accuracy is reported over all test examples (weighted), over clients (unweighted),
    and for each client.
    """
    logits, labels = predictions.logits.double().numpy(), predictions.labels.numpy()
    row: LogRow = {
        **metrics.measured(metrics.of_logits(logits, labels, coordinates, temperature)),
        "test_temperature": temperature,
    }
    sizes = [len(federation.clients[client].test) for client in federation.numbers]
    row["client_accuracy"] = over_clients(predictions.clients, sizes)
    row["clients"] = predictions.clients
    unseen = [value for value in predictions.unseen if value is not None]
    if unseen:
        row["unseen_accuracy"] = float(np.mean(unseen))
    return row


def over_clients(accuracies: list[float | None], sizes: list[int]) -> dict[str, float]:
    """Return the mean accuracy over clients, weighted by test examples (``weighted``) and not (``unweighted``)."""
    shown = [(value, size) for value, size in zip(accuracies, sizes, strict=True) if value is not None]
    return {
        "weighted": sum(value * size for value, size in shown) / sum(size for _, size in shown),
        "unweighted": float(np.mean([value for value, _ in shown])),
    }


def over_clusters(accuracies: list[float | None], federation: Federation, clusters: list[Federation]) -> float:
    """Return the accuracy on each cluster's test examples, averaged over ``clusters``, from clients' ``accuracies``."""
    accuracy_of, means = dict(zip(federation.numbers, accuracies, strict=True)), []
    for cluster in clusters:
        sizes = [len(cluster.clients[client].test) for client in cluster.numbers]
        if sum(sizes):
            means.append(over_clients([accuracy_of[client] for client in cluster.numbers], sizes)["weighted"])
    return float(np.mean(means))


def measure_valid(
    method: RoundMethod, config: object, state: FederatedState, setup: Setup, engine: Engine
) -> dict[str, float] | None:
    """Return every metric of the deployed models on the clients' own validation examples, pooled.

    The result is {} if logits are not finite, and None without validation examples.
    """
    federation = setup.federation
    with_valid = [client for client in federation.numbers if len(federation.clients[client].valid)]
    if not with_valid:
        return None
    requests = []
    for client in with_valid:
        model, rows = method.deployed(config, state, federation, client), federation.clients[client].valid
        requests.append(federation.inference(client, model, rows, "train"))
    logits = torch.cat(engine.logits(requests)).double().cpu().numpy()
    labels = setup.data.labels[torch.cat([federation.clients[client].valid for client in with_valid])].cpu().numpy()
    if not np.isfinite(logits).all():
        return {}
    return metrics.measured(metrics.of_logits(logits, labels, setup.task.coordinates))


def check_logits(predictions: TestPredictions, round: int) -> None:
    """Raise :class:`DivergedError` if any logit is not finite."""
    if not bool(torch.isfinite(predictions.logits).all()):
        number = round + 1
        raise DivergedError(f"diverged in round {number}: the averaged model's logits are not finite", round=number)


def evaluation_temperature(config: Any, round: int) -> float:
    """Return the softmax temperature for ``tempered_loss`` in this round."""
    return 1.0 if config.lr_control else scheduled(config.temperature, config.schedule, round)


def local_facts(requests: list[LocalTraining], trained: list[Trained]) -> LogRow:
    """Return facts about the participants' training.

    They are accuracy on own test examples before and after, steps, and the mean loss and temperature. If a client
    trains several models in a round, accuracy and loss describe the first model, which the client sends; steps count
    all.
    """
    if not requests:
        return dict(NO_WORK)
    first: dict[int, tuple[Trained, int]] = {}
    for result, request in zip(trained, requests, strict=True):
        first.setdefault(result.client, (result, len(request.test_rows)))
    pairs = list(first.values())
    temperatures = [request.objective.settings.get("temperature", 1.0) for request in requests]
    return {
        "participants": list(first),
        "before": [result.before / size if size else None for result, size in pairs],
        "after": [result.after / size if size else None for result, size in pairs],
        "train_loss": float(np.mean([result.loss for result, _ in pairs])),
        "train_temperature": float(np.mean(temperatures)),
        "steps": sum(result.steps for result in trained),
    }


# ----------------------------------------------------------------------------------------------------------- summary


def summarize(rows: list[LogRow], target: float | None) -> Facts:
    """Return the result's metrics.

    They are the metrics of the last evaluated round, the best accuracy, and the first round that reaches ``target``.
    """
    measured = [row for row in rows if "accuracy" in row]
    if not measured:
        problem = f"plan() ended after {counted(len(rows), 'round')}, before any evaluation"
        raise UserError(problem, "method.algorithm", hint="Return more requests, or use training.evaluate_every=1")
    last = measured[-1]
    curve = [(row["round"], row[metrics.ACCURACY]) for row in measured]
    best = max(value for _, value in curve)
    return {
        "metrics": {key: {"ALL": last[key]} for key in metrics.METRICS if isinstance(last.get(key), float)}
        | {"client_accuracy": last["client_accuracy"]},
        "best": {"accuracy": best, "round": metrics.reached_at(curve, best)},
        "target": target,
        "rounds_to_target": metrics.reached_at(curve, target),
        "rounds": len(rows),
    }
