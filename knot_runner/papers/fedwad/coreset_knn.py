"""One coreset per client, of its own data; all coresets together classify by the nearest neighbor (FedWaD 4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from knot_runner.data.counts import of_images
from knot_runner.data.pools import TextPool
from knot_runner.papers.fedwad import descent as descent
from knot_runner.papers.fedwad.coreset import (
    Clients,
    begin,
    check_points,
    coreset_draws,
    describe_coresets,
    keep,
    nearest_labels,
    pull,
)
from knot_runner.papers.fedwad.settings import CoresetKnnSettings
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord
from knot_runner.pipelines.features.encoding import client_partition, feature_space, read_examples
from knot_runner.pipelines.rounds.loop import State, run_rounds
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow


def inspect_coreset_knn(context: RunContext) -> RunInputs:
    """Return the clients' part of the examples; prepared are all of them, and the rows (ascending) that an encoder of
    images is trained on.

    Raises:
        UserError: A part would be empty.
    """
    settings, config = context.settings, context.method
    whole = read_examples(context, config)
    if isinstance(whole, TextPool):  # text features are fitted on a part of their own
        task, held = whole, np.arange(0)
    else:
        held, rest = split(config, len(whole.train), settings.seed)
        task = replace(whole, train=whole.train.take(rest))
    partition = client_partition(context, task)
    counts = of_images(task, partition)
    notes = [*whole.notes, *partition.notes, *counts.warnings()]
    return RunInputs(task, partition, counts, notes, (whole, held))


def run_coreset_knn(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Learn a coreset of each client's own data; classify by the nearest point of all of them."""
    whole, held = inputs.prepared
    task, partition = inputs.task, inputs.partition
    context.begin()
    space = feature_space(context, context.method, whole, held)
    clients = Clients(space.points(task.train), partition.train)
    points, rows = _coresets(context, clients, whole.digest)
    labels, owners = _labeled(points, clients, task.train.labels)
    classifier = KNeighborsClassifier(1, algorithm="brute").fit(np.concatenate(points), labels)
    predicted, truth = classifier.predict(space.points(task.test)), task.test.labels
    facts = context.predicted(np.eye(len(task.classes))[predicted], truth, task.coordinates)
    facts["metrics"]["client_accuracy"] = client_accuracy(predicted == truth, partition.test)
    more = {"labels": torch.from_numpy(labels), "clients": torch.from_numpy(owners)}
    keep(context, space, np.concatenate(points), more)
    describe_coresets(context, inputs, space, rows, record)
    record.add(data=whole.digest, **facts)


def client_accuracy(right: np.ndarray, tests: list[np.ndarray]) -> dict[str, float]:
    """Return the mean of ``right`` (bool [T]) over test examples, and over clients with rows ``tests`` of these."""
    shares = [float(right[rows].mean()) for rows in tests if len(rows)]
    return {"weighted": float(right.mean()), "unweighted": float(np.mean(shares))}


def split(config: CoresetKnnSettings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(Rows that the encoder is trained on, rows that clients get) of ``count`` training images; ascending.

    Without an encoder the clients get all. Raises :class:`UserError` where a part would be empty.
    """
    if config.encoder is None:
        return np.arange(0), np.arange(count)
    taken = round(config.encoder_share * count)
    if taken == 0 and config.encoder.epochs:
        raise UserError(
            f"{config.encoder_share} of {count} images leaves none to train on; 0.5 is right", "method.encoder_share"
        )
    order = coreset_draws(seed, "coreset_knn", "split").permutation(count)
    return np.sort(order[:taken]), np.sort(order[taken:])


def _coresets(context: RunContext, clients: Clients, data: str) -> tuple[list[np.ndarray], list[Facts]]:
    """Learns each client's coreset [K, d], resuming from the last commit; returns them and the log, a row per
    client."""
    count = len(clients.rows)

    def _advance(state: State, client: int, rows: list[LogRow]) -> tuple[State, LogRow] | None:
        if client == count:
            return None
        coreset, loss = own_coreset(context.method, context.settings.seed, clients, client)
        context.progress("coresets", client + 1, count, f"distance {loss:.3f}")
        points = torch.cat([state["points"], torch.from_numpy(coreset[None])])
        return {"points": points}, {"client": client, "loss": loss}

    def _start() -> State:
        return {"points": torch.empty(0, context.method.points, clients.points.shape[1], dtype=torch.float64)}

    state, rows = run_rounds(_advance, context.commits(data), _start, log=context.log)
    return list(state["points"].numpy()), rows


def own_coreset(config: CoresetKnnSettings, seed: int, clients: Clients, client: int) -> tuple[np.ndarray, float]:
    """The coreset [K, d] of one client's own samples, and its distance to them before the last step.

    Draws depend on (seed, client, epoch) alone. Raises :class:`UserError` when it diverges.
    """
    state = begin(config, clients.points.shape[1], seed, "coreset_knn", client)
    loss = 0.0
    for epoch in range(config.epochs):
        loss, gradient = pull(config, state.points, clients, client, (seed, "coreset_knn"), (client, epoch))
        state = descent.descent_step(state, gradient, config.optimizer, config.lr)
        check_points(state.points, config.lr, f"epoch {epoch + 1} of client {client}")
    return state.points, loss


def _labeled(points: list[np.ndarray], clients: Clients, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Label, owner) of each point of all coresets; a label is that of the nearest sample of the point's own client."""
    found = [
        nearest_labels(coreset, clients.points[rows], labels[rows])
        for coreset, rows in zip(points, clients.rows, strict=True)
    ]
    return np.concatenate(found), np.repeat(np.arange(len(points)), [len(coreset) for coreset in points])
