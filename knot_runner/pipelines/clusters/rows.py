"""Log rows of separately trained clusters, and the run's rows merged from them.

A cluster's row holds additive quantities: counts of the confusion table, means with their numbers of images.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from knot_runner import metrics
from knot_runner.methods.federation import Federation
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds import scores
from knot_runner.pipelines.rounds.loop import scalars
from knot_runner.pipelines.rounds.summary import fleet_counts
from knot_runner.pipelines.runs.commits import LogRow
from knot_runner.records import ROUNDS_FILE
from knot_runner.results.base import BYTES, FLOPS, summed_costs
from knot_runner.util.files import write_atomic

#: Metrics of predictions that can be merged from clusters' rows: they are sums over classes.
MERGED = ("accuracy", "f1", "sd")


def measured_row(
    found: scores.TestPredictions,
    everyone: Federation,
    cluster: Federation,
    temperature: float,
    coordinates: list[list[float]] | None,
) -> LogRow:
    """Returns the cluster's metrics; ``found``: predictions for all clients (``everyone``), each on its own test
    images."""
    own = _part(found, everyone, cluster)
    logits, labels = own.logits.double().numpy(), own.labels.numpy()
    classes = logits.shape[1]
    losses = [metrics.mean_cross_entropy(logits, labels, value) if len(labels) else 0.0 for value in (1.0, temperature)]
    row: LogRow = {
        "confusion": metrics.confusion(logits.argmax(1), labels, classes).tolist(),
        "loss": losses[0],
        "tempered_loss": losses[1],
        "test_temperature": temperature,
        "clients": own.clients,
    }
    if coordinates is not None:
        row["sd"] = _distances(metrics.softmax(logits), labels, np.asarray(coordinates, dtype=np.float64))
    return row


def write_rows(context: RunContext, rows: list[LogRow]) -> None:
    """Writes the run's merged ``rows``, and logs their numbers."""
    write_atomic(context.folder / ROUNDS_FILE, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))
    for row in rows:
        context.log(scalars(row))


def merged(logs: list[list[LogRow]], clusters: list[Federation]) -> list[LogRow]:
    """Returns the run's rows, merged from the rows of each of ``clusters``, which
    together hold all clients. A cluster that finished earlier keeps its last metrics."""
    rows = []
    for round in range(max(map(len, logs))):
        parts = [log[round] if round < len(log) else _idle(log[-1]) for log in logs]
        row = {"round": round + 1, **_work(parts), **on_clock(parts), **summed_costs(parts), **_distilled(parts)}
        if all("confusion" in part for part in parts):
            row |= _measures(parts, clusters)
        rows.append(row | {"seconds": sum(part["seconds"] for part in parts)})
    return rows


def _part(found: scores.TestPredictions, everyone: Federation, cluster: Federation) -> scores.TestPredictions:
    places = {client: place for place, client in enumerate(everyone.numbers)}
    at = [places[client] for client in cluster.numbers]
    sizes = [len(everyone.clients[client].test) for client in everyone.numbers]
    logits, labels = found.logits.split(sizes), found.labels.split(sizes)
    clients = [found.clients[place] for place in at]
    return scores.TestPredictions(torch.cat([logits[i] for i in at]), torch.cat([labels[i] for i in at]), clients)


def _distances(probabilities: np.ndarray, labels: np.ndarray, points: np.ndarray) -> list[float]:
    """Returns the semantic distance within each class [C]; 0 for a class that does not occur."""
    found = []
    for label in range(len(points)):
        own = labels == label
        found.append(metrics.semantic_distance(probabilities[own], labels[own], points) if own.any() else 0.0)
    return found


def _work(parts: list[LogRow]) -> LogRow:
    work = [zip(part["participants"], part["before"], part["after"], strict=True) for part in parts]
    takers = sorted((taker for own in work for taker in own), key=lambda taker: taker[0])
    counts = [len(part["participants"]) for part in parts]
    means = {key: _mean([part[key] for part in parts], counts) for key in ("train_loss", "train_temperature")}
    columns = {key: [taker[i] for taker in takers] for i, key in enumerate(("participants", "before", "after"))}
    return {**columns, **means, "steps": sum(part["steps"] for part in parts)}


def on_clock(parts: list[LogRow]) -> LogRow:
    """Returns the fleet's log entries: each cluster has its own clock, and the latest counts; {} without a fleet."""
    if not all("clock" in part for part in parts):
        return {}
    staleness = _mean([part["staleness"] for part in parts], [len(part["participants"]) for part in parts])
    return {"clock": max(part["clock"] for part in parts), **fleet_counts(parts), "staleness": staleness}


def _idle(last: LogRow) -> LogRow:
    """Returns the row of a finished cluster for a later round, made from its ``last`` one."""
    return {**last, **scores.NO_WORK, **dict.fromkeys((*BYTES, *FLOPS), 0), "seconds": 0.0}


def _distilled(parts: list[LogRow]) -> LogRow:
    """Returns the servers' distillation entries: loss averaged over steps, accuracies over test examples; {} if none
    distils."""
    own = [part for part in parts if "distil_steps" in part]
    if not own:
        return {}
    steps = [part["distil_steps"] for part in own]
    row = {"distil_loss": _mean([part["distil_loss"] for part in own], steps), "distil_steps": sum(steps)}
    if all("distil_after" in part for part in own):
        sizes = [part["distil_tested"] for part in own]
        row |= {key: _mean([part[key] for part in own], sizes) for key in ("distil_before", "distil_after")}
        row["distil_tested"] = sum(sizes)
    return row


def _measures(parts: list[LogRow], clusters: list[Federation]) -> dict[str, Any]:
    tables = [np.array(part["confusion"]) for part in parts]
    images, table = [int(own.sum()) for own in tables], sum(tables)
    row: LogRow = {"accuracy": metrics.accuracy(table), "f1": metrics.macro_f1(table)}
    row |= {key: _mean([part[key] for part in parts], images) for key in ("loss", "tempered_loss")}
    row["test_temperature"] = parts[0]["test_temperature"]
    if all("sd" in part for part in parts):
        row["sd"] = _semantic_distance(tables, [part["sd"] for part in parts])
    return row | _accuracies(parts, clusters)


def _semantic_distance(tables: list[np.ndarray], within: list[list[float]]) -> float:
    """Returns the mean over the classes that occur, from the distance within each class of each cluster."""
    counts = np.array([table.sum(1) for table in tables])
    present = counts.sum(0) > 0
    return float(np.mean((np.array(within) * counts).sum(0)[present] / counts.sum(0)[present]))


def _accuracies(parts: list[LogRow], clusters: list[Federation]) -> LogRow:
    """Returns each client's accuracy, and means weighted by images, over clients, and over clusters (published
    tables)."""
    sizes = [len(rows) for rows in clusters[0].rows("test")]
    found, by_cluster = {}, []
    for part, cluster in zip(parts, clusters, strict=True):
        found |= dict(zip(cluster.numbers, part["clients"], strict=True))
        if any(value is not None for value in part["clients"]):
            own = scores.over_clients(part["clients"], [sizes[client] for client in cluster.numbers])
            by_cluster.append(own["weighted"])
    members = sorted(found)
    clients = [found[client] for client in members]
    over = scores.over_clients(clients, [sizes[client] for client in members])
    return {"client_accuracy": over | {"clusters": float(np.mean(by_cluster))}, "clients": clients}


def _mean(values: list[float | None], weights: list[int]) -> float | None:
    """Returns the weighted mean of ``values``, those of weight 0 being perhaps None; None without any weight."""
    if not sum(weights):
        return None
    known = [value if weight else 0.0 for value, weight in zip(values, weights, strict=True)]
    return float(np.average(known, weights=weights))
