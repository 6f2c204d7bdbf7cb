"""One coreset per client, of its own data; all coresets together classify by the nearest neighbor (FedWaD 4)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from knot_runner import metrics
from knot_runner.config.settings import CoresetKnnSettings
from knot_runner.config.strict import build
from knot_runner.data.counts import of_images
from knot_runner.data.images import ImageTask, Partition
from knot_runner.data.pools import TextPool
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.pipelines.context import RunContext, RunInputs
from knot_runner.pipelines.coreset import (
    Clients,
    begin,
    check_points,
    coreset_draws,
    describe_coresets,
    keep,
    nearest_labels,
    pull,
)
from knot_runner.pipelines.features.encoding import client_partition, feature_space, read_examples
from knot_runner.pipelines.runs.commits import Commits
from knot_runner.results.training import KnnResult
from knot_runner.transport import coreset as descent
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, write_atomic


def run_coreset_knn(context: RunContext) -> KnnResult:
    """Carries out the run; returns the result. Raises :class:`UserError`."""
    began = time.monotonic()
    hp = context.hp
    whole, held, seen = _read(context)
    task, partition = seen.task, seen.partition
    context.begin(seen.notes)
    space = feature_space(context, hp, whole, held)
    clients = Clients(space.points(task.train), partition.train)
    points, rows = _coresets(context, clients, whole.digest)
    labels, owners = _labeled(points, clients, task.train.labels)
    facts, predictions = _classify(np.concatenate(points), labels, space.points(task.test), task, partition)
    more = {"labels": torch.from_numpy(labels), "clients": torch.from_numpy(owners)}
    keep(context, space, np.concatenate(points), more)
    write_atomic(context.folder / "predictions.safetensors", tensor_parts(predictions))
    content = {**describe_coresets(context, seen, space, rows, began), "kind": "knn", "data": whole.digest, **facts}
    return build(KnnResult, content, "")


def inspect_coreset_knn(context: RunContext) -> RunInputs:
    """Returns the run's inputs and notes on them. Raises :class:`UserError`."""
    return _read(context)[2]


def _read(context: RunContext) -> tuple[ImageTask | TextPool, np.ndarray, RunInputs]:
    """All examples; the rows (ascending) that an encoder of images is trained on; and the clients' part."""
    settings, hp = context.settings, context.hp
    whole = read_examples(context, hp)
    if isinstance(whole, TextPool):  # text features are fitted on a part of their own
        task, held = whole, np.arange(0)
    else:
        held, rest = split(hp, len(whole.train), settings.seed)
        task = replace(whole, train=whole.train.take(rest))
    partition = client_partition(context, task)
    counts = of_images(task, partition)
    return whole, held, RunInputs(task, partition, counts, [*whole.notes, *partition.notes, *counts.warnings()])


def split(hp: CoresetKnnSettings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(Rows that the encoder is trained on, rows that clients get) of ``count`` training images; ascending.

    Without an encoder the clients get all. Raises :class:`UserError` where a part would be empty.
    """
    if hp.encoder is None:
        return np.arange(0), np.arange(count)
    taken = round(hp.encoder_share * count)
    if taken == 0 and hp.encoder.epochs:
        raise UserError(
            f"{hp.encoder_share} of {count} images leaves none to train on; 0.5 is right", "method.encoder_share"
        )
    order = coreset_draws(seed, "coreset_knn", "split").permutation(count)
    return np.sort(order[:taken]), np.sort(order[taken:])


def _coresets(context: RunContext, clients: Clients, data: str) -> tuple[list[np.ndarray], list[Facts]]:
    """Learns each client's coreset [K, d], resuming from the last commit; returns them and the log, a row per
    client."""
    commits, count = Commits(context.folder, data, context.note, context.code), len(clients.rows)
    commit, rows = commits.resume()
    points = [commit.tensors["points"][client].numpy() for client in range(commit.step + 1)]
    for client in range(commit.step + 1, count):
        began = time.monotonic()
        coreset, loss = own_coreset(context.hp, context.settings.seed, clients, client)
        points.append(coreset)
        rows.append({"client": client, "loss": loss, "seconds": time.monotonic() - began})
        context.log({"client": client, "loss": loss})
        commits.save(client, {"points": torch.from_numpy(np.stack(points))}, rows)
        context.progress("coresets", client + 1, count, f"distance {loss:.3f}")
    return points, rows


def own_coreset(hp: CoresetKnnSettings, seed: int, clients: Clients, client: int) -> tuple[np.ndarray, float]:
    """The coreset [K, d] of one client's own samples, and its distance to them before the last step.

    Draws depend on (seed, client, epoch) alone. Raises :class:`UserError` when it diverges.
    """
    state = begin(hp, clients.points.shape[1], seed, "coreset_knn", client)
    loss = 0.0
    for epoch in range(hp.epochs):
        loss, gradient = pull(hp, state.points, clients, client, (seed, "coreset_knn"), (client, epoch))
        state = descent.descent_step(state, gradient, hp.optimizer, hp.lr)
        check_points(state.points, hp.lr, f"epoch {epoch + 1} of client {client}")
    return state.points, loss


def _labeled(points: list[np.ndarray], clients: Clients, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Label, owner) of each point of all coresets; a label is that of the nearest sample of the point's own client."""
    found = [
        nearest_labels(coreset, clients.points[rows], labels[rows])
        for coreset, rows in zip(points, clients.rows, strict=True)
    ]
    return np.concatenate(found), np.repeat(np.arange(len(points)), [len(coreset) for coreset in points])


def _classify(
    points: np.ndarray, labels: np.ndarray, test: np.ndarray, task: ImageTask | TextPool, partition: Partition
) -> tuple[Facts, dict[str, torch.Tensor]]:
    """Returns metrics and predictions of 1-nearest-neighbor classification of ``test`` [T, d] by ``points`` [M, d]:
    one classifier for all."""
    predicted = KNeighborsClassifier(1, algorithm="brute").fit(points, labels).predict(test)
    truth = task.test.labels
    votes = np.eye(len(task.classes))[predicted]
    measured = metrics.measured(metrics.TestSet(votes, votes, truth, task.coordinates))
    shares = [float((predicted == truth)[rows].mean()) for rows in partition.test if len(rows)]
    clients = {"weighted": measured[metrics.ACCURACY], "unweighted": float(np.mean(shares))}
    scores = {name: {"ALL": value} for name, value in measured.items()} | {"client_accuracy": clients}
    arrays = {"test.probabilities": torch.from_numpy(votes).float(), "test.labels": torch.from_numpy(truth)}
    return {"evaluated": "global", "metrics": scores}, arrays
