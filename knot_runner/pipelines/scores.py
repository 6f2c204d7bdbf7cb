"""Metrics of one round.

Each row of ``rounds.jsonl`` has the metrics of the deployed models on the clients' test examples. To select among runs,
use the metrics on validation examples instead (``partition.valid``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from knot_runner import metrics
from knot_runner.engine.federated.cohort import Inference, LocalTraining, Trained
from knot_runner.methods.contract import ClientWork, RoundMethod
from knot_runner.methods.federated.chilling import scheduled
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.metrics import Measures
from knot_runner.util.errors import UserError, counted
from knot_runner.util.files import Facts, LogRow

if TYPE_CHECKING:
    from knot_runner.pipelines.clients import FederatedContext


#: The accuracy of each client's model on the client's test examples; None without test examples.
Accuracies = list[float | None]


@dataclass(frozen=True)
class TestPredictions:
    """Predictions of the deployed models.

    Attributes:
        logits, labels: Logits [M, C] and labels [M] of M test examples. Examples of unseen clients are left out.
        clients: A list with the accuracy of each client's model on the client's test examples. The entry is None for a
            client without test examples.
        unseen: A list like ``clients``, for the unseen clients, which take part in no round.
    """

    logits: Tensor
    labels: Tensor
    clients: Accuracies
    unseen: Accuracies


#: Maximum number of values (parameters and logits) of clients' own models in memory at a time, and the minimum number
#: of models at a time, so that every worker has one.
VALUES_AT_ONCE = 2**23
FEWEST_AT_ONCE = 8


def predict_test(run: FederatedContext, state: FederatedState) -> TestPredictions:
    """Predict the test examples with the deployed models.

    If all clients deploy one model, this model predicts all test examples. Otherwise, each client's model predicts the
    client's test examples.

    Raises:
        UserError: Clients have different models although the method declares one model.
    """
    federation = run.federation
    labels = run.setup.test.labels
    clients = [*federation.numbers, *federation.unseen]
    test_rows = [federation.clients[client].test for client in clients]
    seen = len(federation)
    own_labels = [labels[rows] for rows in test_rows]
    if not one_model(run.method, run.config):
        own = zip(clients, test_rows, strict=True)
        requests = (federation.inference(client, run.deployed(state, client), rows) for client, rows in own)
        return own_predictions(list(logits_of(run, requests, federation.layout.size)), own_labels, seen)
    model = run.deployed(state, 0)
    for client in clients:
        other = run.deployed(state, client).weights
        if model.weights is not other and not torch.equal(model.weights, other):
            problem = "the clients use different models, but one_model=True"
            hint = "Register the method with one_model=False"
            raise UserError(problem, f"method.algorithm={run.config.algorithm}", hint=hint)
    (logits,) = run.engine.logits([Inference(model, torch.arange(len(labels)))])
    predictions = own_predictions([logits[rows] for rows in test_rows], own_labels, seen)
    if federation.unseen:
        return predictions
    return replace(predictions, logits=logits, labels=labels)


def own_predictions(logits: list[Tensor], labels: list[Tensor], seen: int) -> TestPredictions:
    """Return the predictions, given each client's logits and labels. Clients with an index >= ``seen`` are unseen."""
    accuracies: Accuracies = []
    for client_logits, client_labels in zip(logits, labels, strict=True):
        hits = (client_logits.argmax(1) == client_labels).double()
        accuracies.append(float(hits.mean()) if len(hits) else None)
    return TestPredictions(torch.cat(logits[:seen]), torch.cat(labels[:seen]), accuracies[:seen], accuracies[seen:])


def logits_of(run: FederatedContext, requests: Iterable[Inference], values: int) -> Iterator[Tensor]:
    """Yield the logits of each request.

    ``values`` is the number of parameters and logits of one request. The larger ``values`` is, the fewer models are in
    memory at a time.
    """
    waiting = iter(requests)
    while part := list(itertools.islice(waiting, max(FEWEST_AT_ONCE, VALUES_AT_ONCE // values))):
        yield from run.engine.logits(part)


def one_model(method: RoundMethod, config: Any) -> bool:
    """Return whether all clients deploy the same model."""
    return method.one_model and config.batchnorm != "local" and config.patterns == ("*",)


def score(run: FederatedContext, predictions: TestPredictions, round: int) -> LogRow:
    """Return a log row with every metric that is defined for the run, and with the clients' accuracies.

    The log row has these entries in addition to the metrics:

    - ``test_temperature``: the temperature T for the metric ``tempered_loss`` in ``round``
    - ``client_accuracy``: the result of :func:`over_clients`
    - ``clients``: the accuracy of each client
    - ``unseen_accuracy``, if there are unseen clients: the mean of their accuracies
    """
    federation = run.federation
    temperature = evaluation_temperature(run.config, round)
    logits = predictions.logits.double().numpy()
    labels = predictions.labels.numpy()
    sizes = [len(federation.clients[client].test) for client in federation.numbers]
    row: LogRow = {
        **metrics.measured(metrics.of_logits(logits, labels, run.setup.task.coordinates, temperature)),
        "test_temperature": temperature,
        "client_accuracy": over_clients(predictions.clients, sizes),
        "clients": predictions.clients,
    }
    unseen = [value for value in predictions.unseen if value is not None]
    if unseen:
        row["unseen_accuracy"] = float(np.mean(unseen))
    return row


def over_clients(accuracies: Accuracies, sizes: list[int]) -> Measures:
    """Return two means of the clients' accuracies: ``weighted`` and ``unweighted``.

    The weighted mean uses ``sizes``, the clients' numbers of test examples, as weights.
    """
    shown = []
    correct = 0.0
    examples = 0
    for value, size in zip(accuracies, sizes, strict=True):
        if value is not None:
            shown.append(value)
            correct += value * size
            examples += size
    return {"weighted": correct / examples, "unweighted": float(np.mean(shown))}


def over_clusters(accuracies: Accuracies, federation: Federation, clusters: list[Federation]) -> float:
    """Return the unweighted mean of the accuracies of ``clusters``.

    The accuracy of a cluster is measured on all test examples of its clients. ``accuracies`` holds one accuracy per
    client, in the order of ``federation.numbers``.
    """
    accuracy_of = dict(zip(federation.numbers, accuracies, strict=True))
    means = []
    for cluster in clusters:
        sizes = [len(cluster.clients[client].test) for client in cluster.numbers]
        if any(sizes):
            means.append(over_clients(list(map(accuracy_of.get, cluster.numbers)), sizes)["weighted"])
    return float(np.mean(means))


def measure_valid(run: FederatedContext, state: FederatedState) -> Measures | None:
    """Return every metric on the pooled validation examples of all clients.

    Each client's deployed model predicts the client's own examples. The result is {} if a logit is not finite. Without
    validation examples, the result is None.
    """
    federation = run.federation
    requests = []
    for client in federation.numbers:
        rows = federation.clients[client].valid
        if len(rows):
            requests.append(federation.inference(client, run.deployed(state, client), rows, "train"))
    if not requests:
        return None
    logits = torch.cat(run.engine.logits(requests)).double().cpu().numpy()
    labels = run.setup.data.labels[torch.cat([request.rows for request in requests])].cpu().numpy()
    if not np.isfinite(logits).all():
        return {}
    return metrics.measured(metrics.of_logits(logits, labels, run.setup.task.coordinates))


def evaluation_temperature(config: Any, round: int) -> float:
    """Return the temperature T of the given round. The metric ``tempered_loss`` divides the logits by T."""
    if config.lr_control:
        return 1.0
    return scheduled(config.temperature, config.schedule, round)


def local_facts(requests: list[LocalTraining], trained: list[Trained]) -> LogRow:
    """Return facts about the participants' training in a round.

    - ``participants``: the clients that trained
    - ``before``, ``after``: each participant's test accuracy before and after training; None without test examples
    - ``train_loss``: training loss, averaged over the participants
    - ``train_temperature``: temperature, averaged over ``requests``
    - ``steps``: total number of steps

    If a client trains several models, accuracy and loss are those of the first model.
    """
    participants = []
    before = []
    after = []
    losses = []
    for work in ClientWork.of_round(0, requests, trained):
        first = work.trained[0]
        size = len(work.requests[0].test_rows)
        participants.append(work.client)
        before.append(first.before / size if size else None)
        after.append(first.after / size if size else None)
        losses.append(first.loss)
    temperatures = [request.objective.settings.get("temperature", 1.0) for request in requests]
    return {
        "participants": participants,
        "before": before,
        "after": after,
        "train_loss": float(np.mean(losses)) if losses else None,
        "train_temperature": float(np.mean(temperatures)) if losses else None,
        "steps": sum(result.steps for result in trained),
    }


# ----------------------------------------------------------------------------------------------------------- summary


def summarize(rows: list[LogRow], target: float | None) -> Facts:
    """Return fields of the result, computed from the log ``rows`` of all rounds.

    The fields include the metrics of the last evaluated round, the best accuracy, and the first round whose accuracy
    reaches ``target``.

    Raises:
        UserError: No round was evaluated.
    """
    measured = [row for row in rows if metrics.ACCURACY in row]
    if not measured:
        problem = f"plan() ended after {counted(len(rows), 'round')}, before any evaluation"
        raise UserError(problem, "method.algorithm", hint="Plan more rounds, or use training.evaluate_every=1")
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
