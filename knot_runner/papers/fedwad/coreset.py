"""Coresets of clients' data (FedWaD 4).

One kind of coreset represents all clients' data: in each epoch, some clients send gradients with respect to its points
(D.2). The other kind is one coreset per client, learned from its own data. Together, these classify by the nearest
neighbor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from knot_runner.data.counts import of_images
from knot_runner.data.pools import TextPool
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.papers.fedwad import descent as descent
from knot_runner.papers.fedwad.descent import Descent
from knot_runner.papers.fedwad.settings import CoresetKnnSettings, CoresetSettings
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord, total_seconds
from knot_runner.pipelines.features.encoding import Space, client_partition, feature_space, read_examples
from knot_runner.pipelines.features.texts import TextSpace
from knot_runner.pipelines.rounds.loop import Advanced, State, run_rounds
from knot_runner.transport.federated.plan import squared_distances
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow, write_atomic

#: Training samples, at most, that the finished coreset is compared with.
COMPARED = 2000
#: Clients drawn per epoch unless the settings say otherwise (paper).
PARTICIPANTS = 10
#: Coordinates that a coreset may have, at most: squares of larger ones overflow.
MAX_COORDINATE = 1e150


@dataclass(frozen=True, eq=False)
class Clients:
    """``points`` [N, d] of all training examples, and the ``rows`` of each client."""

    points: np.ndarray
    rows: list[np.ndarray]


def inspect_coreset(context: RunContext) -> RunInputs:
    """Return the run's inputs and notes on them. Raises :class:`UserError`."""
    config = context.method
    task = read_examples(context, config)
    partition = client_partition(context, task)
    clients = len(partition.train)
    if config.participants is not None and config.participants > clients:
        raise UserError(
            f"expected at most {clients}, the number of clients, got {config.participants}", "method.participants"
        )
    notes = [] if participants(config, clients) == PARTICIPANTS else [f"method.participants: all {clients} clients"]
    counts = of_images(task, partition)
    return RunInputs(task, partition, counts, [*task.notes, *partition.notes, *notes, *counts.warnings()])


def run_coreset(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Learn the coreset of all clients' data, and compare it with a sample of them."""
    settings, config, task, partition = context.settings, context.method, inputs.task, inputs.partition
    context.begin()
    space = feature_space(context, config, task)
    clients = Clients(space.points(task.train), partition.train)
    points, rows = _learn(context, clients, task.digest)
    compared = np.concatenate(clients.rows)
    compared = subsample(compared, COMPARED, numpy_generator(settings.seed, "coreset", "compared"))
    distance, _ = descent.exact_gradient(points, clients.points[compared])  # the objective
    labels = nearest_labels(points, clients.points, task.train.labels)
    keep(context, space, points, {"labels": torch.from_numpy(labels)})
    describe_coresets(context, inputs, space, rows, record)
    record.add(metrics={"distance": {"ALL": distance}}, compared=len(compared), classes_covered=len(np.unique(labels)))


def participants(config: CoresetSettings, clients: int) -> int:
    """Return the number of ``clients`` that an epoch draws."""
    return config.participants or min(PARTICIPANTS, clients)


def _learn(context: RunContext, clients: Clients, data: str) -> tuple[np.ndarray, list[Facts]]:
    """Run all epochs, resuming from the last commit; return the points [K, d] and the log."""
    config, seed = context.method, context.settings.seed

    def _advance(state: State, epoch: int, rows: list[LogRow]) -> Advanced:
        if epoch == config.epochs:
            return None
        before = Descent(**{name: tensor.numpy() for name, tensor in state.items()}, steps=epoch)
        after, row = advance_epoch(config, seed, before, clients, epoch)
        context.progress("epochs", epoch + 1, config.epochs, f"distance {row['loss']:.3f}")
        return _tensors(after), row

    def _start() -> State:
        return _tensors(begin(config, clients.points.shape[1], seed, "coreset"))

    def _log(row: LogRow) -> None:
        context.log({"epoch": row["round"], "loss": row["loss"]})

    state, rows = run_rounds(_advance, context.commits(data), _start, log=_log)
    context.progress("epochs", 1, 1, "done")
    return state["points"].numpy(), rows


def _tensors(state: Descent) -> State:
    arrays = {"points": state.points, "first": state.first, "second": state.second}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def advance_epoch(
    config: CoresetSettings, seed: int, state: Descent, clients: Clients, epoch: int
) -> tuple[Descent, Facts]:
    """Run one epoch: participants, sampled with (seed, epoch), send gradients, and the points take one step."""
    draw = numpy_generator(seed, "coreset", "participants", epoch)
    chosen = np.sort(draw.choice(len(clients.rows), participants(config, len(clients.rows)), replace=False)).tolist()
    found = [pull(config, state.points, clients, client, (seed, "coreset"), (epoch, client)) for client in chosen]
    loss = float(np.mean([distance for distance, _ in found]))
    gradient = descent.aggregated([gradient for _, gradient in found], config.aggregation)
    state = descent.descent_step(state, gradient, config.optimizer, config.lr)
    check_points(state.points, config.lr, f"epoch {epoch + 1}")
    return state, {"loss": loss, "participants": chosen}


# ----------------------------------------------------------------------------------------------- shared by both kinds


def begin(config: CoresetSettings | CoresetKnnSettings, dimension: int, seed: int, *names: object) -> Descent:
    """Return the initial points, drawn with (seed, *names)."""
    return descent.first_descent(config.points, dimension, config.start_scale, numpy_generator(seed, *names, "start"))


def subsample(rows: np.ndarray, most: int | None, rng: np.random.Generator) -> np.ndarray:
    """Return ``most`` of ``rows``, drawn without replacement; all rows if there are no more, or if ``most`` is None."""
    return rows if most is None or len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def pull(
    config: CoresetSettings | CoresetKnnSettings, points: np.ndarray, clients: Clients, client: int,
    run: tuple[int, str], place: tuple[int, int],
) -> tuple[float, np.ndarray]:  # fmt: skip
    """Return the distance of ``points`` [K, d] to some samples of ``client``, and its gradient [K, d].

    The distance is of kind ``config.distance``. Draws are keyed by ``run`` and ``place``.
    """
    sample = clients.points[subsample(clients.rows[client], config.samples, numpy_generator(*run, "samples", *place))]
    if config.distance == "exact":
        return descent.exact_gradient(points, sample)
    return descent.federated_gradient(points, sample, config.fedwad, partial(numpy_generator, *run, "fedwad", *place))


def check_points(points: np.ndarray, lr: float, where: str) -> None:
    """Raise :class:`UserError` if points are not finite or so large that their squares overflow."""
    if not np.abs(points).max() < MAX_COORDINATE:  # true for NaN, too
        raise UserError(f"with {lr}, the coreset diverged in {where}. Use a smaller rate", "method.lr")


def nearest_labels(points: np.ndarray, samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return for each of ``points`` [K, d] the label of the nearest one of ``samples`` [n, d] (FedWaD 4)."""
    return labels[squared_distances(points, samples).argmin(1)]


def keep(context: RunContext, space: Space | TextSpace, points: np.ndarray, more: dict[str, Tensor]) -> None:
    """Write ``coreset.safetensors``: the points (``codes``), decoded images (``points``), and ``more``."""
    tensors = {"codes": torch.from_numpy(points)}
    if isinstance(space, Space):
        tensors["points"] = torch.from_numpy(space.images(points)).flatten(1)
    write_atomic(context.folder / "coreset.safetensors", tensor_parts(tensors | more))


def describe_coresets(
    context: RunContext, inputs: RunInputs, space: Space | TextSpace, rows: list[LogRow], record: RunRecord
) -> None:
    """Record the facts that both kinds of coreset share, from the log ``rows``.

    ``shape``: of an image, or the number of a text's features.
    """
    task, partition = inputs.task, inputs.partition
    record.add(
        points=context.method.points,
        shape=list(space.shape),
        clients=len(partition.train),
        datasets={"train": sum(len(rows) for rows in partition.train), "test": len(task.test)},
        distance=context.method.distance,
        losses=[row["loss"] for row in rows],
    )
    record.seconds.update(descent=total_seconds(rows))


# ------------------------------------------------------------------------------------------------ a coreset per client


def inspect_coreset_knn(context: RunContext) -> RunInputs:
    """Return the prepared examples of clients, and the rows that train an encoder of images.

    All examples are prepared; rows are ascending.

    Raises:
        UserError: A part would be empty.
    """
    settings, config = context.settings, context.method
    whole = read_examples(context, config)
    if isinstance(whole, TextPool):  # text features are fitted on a part of their own
        task, held = whole, np.arange(0)
    else:
        held, rest = split_off(config, len(whole.train), settings.seed)
        task = replace(whole, train=whole.train.take(rest))
    partition = client_partition(context, task)
    counts = of_images(task, partition)
    notes = [*whole.notes, *partition.notes, *counts.warnings()]
    return RunInputs(task, partition, counts, notes, (whole, held))


def run_coreset_knn(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Learn a coreset of each client's own data, and classify by the nearest point of all coresets."""
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
    """Return the mean of ``right`` (bool [T]) over test examples, and over clients with the rows ``tests`` of these."""
    shares = [float(right[rows].mean()) for rows in tests if len(rows)]
    return {"weighted": float(right.mean()), "unweighted": float(np.mean(shares))}


def split_off(config: CoresetKnnSettings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of ``count`` training images that train the encoder, and the rows of the clients; ascending.

    Without an encoder, the clients get all rows.

    Raises:
        UserError: A part would be empty.
    """
    if config.encoder is None:
        return np.arange(0), np.arange(count)
    taken = round(config.encoder_share * count)
    if taken == 0 and config.encoder.epochs:
        raise UserError(
            f"share {config.encoder_share} of {count} images leaves no training image. Use 0.5", "method.encoder_share"
        )
    order = numpy_generator(seed, "coreset_knn", "split").permutation(count)
    return np.sort(order[:taken]), np.sort(order[taken:])


def _coresets(context: RunContext, clients: Clients, data: str) -> tuple[list[np.ndarray], list[Facts]]:
    """Learn each client's coreset [K, d], resuming from the last commit.

    Return the coresets and the log, with a row per client.
    """
    count = len(clients.rows)

    def _advance(state: State, client: int, rows: list[LogRow]) -> Advanced:
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
    """Return the coreset [K, d] of one client's own samples, and its distance to them before the last step.

    Draws depend on (seed, client, epoch) only.

    Raises:
        UserError: The points diverge.
    """
    state = begin(config, clients.points.shape[1], seed, "coreset_knn", client)
    loss = 0.0
    for epoch in range(config.epochs):
        loss, gradient = pull(config, state.points, clients, client, (seed, "coreset_knn"), (client, epoch))
        state = descent.descent_step(state, gradient, config.optimizer, config.lr)
        check_points(state.points, config.lr, f"epoch {epoch + 1} of client {client}")
    return state.points, loss


def _labeled(points: list[np.ndarray], clients: Clients, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (label, owner) of each point of all coresets.

    A label is that of the nearest sample of the point's own client.
    """
    found = [
        nearest_labels(coreset, clients.points[rows], labels[rows])
        for coreset, rows in zip(points, clients.rows, strict=True)
    ]
    return np.concatenate(found), np.repeat(np.arange(len(points)), [len(coreset) for coreset in points])
