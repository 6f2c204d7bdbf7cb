"""Coresets of clients' data (FedWaD section 4).

A coreset is a small set of points whose Wasserstein distance to the data is small. There are two kinds of runs:

- One coreset represents the data of all clients. In each epoch, some clients send gradients with respect to its points
  (App. D.2).
- Each client learns a coreset from its own data. All these coresets together are a nearest-neighbor classifier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from knot_runner.data.counts import of_images
from knot_runner.data.tasks import ImageTask
from knot_runner.engine.seeds import numpy_generator
from knot_runner.engine.tensor_file import tensor_parts
from knot_runner.papers.fedwad.descent import Descent, descent_step, federated_gradient, first_descent, gradient
from knot_runner.papers.fedwad.settings import CoresetKnnSettings, CoresetSettings
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord, total_seconds
from knot_runner.pipelines.features.encoding import Space, client_partition, feature_space, read_examples
from knot_runner.pipelines.features.texts import TextSpace
from knot_runner.pipelines.rounds import Advanced, State, run_rounds
from knot_runner.transport.federated.measure import Measure
from knot_runner.transport.federated.plan import squared_distances
from knot_runner.util.errors import UserError
from knot_runner.util.files import Facts, LogRow, write_atomic

#: Maximum number of training samples with which the finished coreset is compared.
COMPARED = 2000
#: Largest absolute coordinate of a coreset's points. The square of a larger coordinate overflows.
MAX_COORDINATE = 1e150


@dataclass(frozen=True, eq=False)
class Clients:
    """The training examples of all clients.

    Attributes:
        points: All N training examples, shape [N, d].
        rows: For each client, the indices of its examples in ``points``.
    """

    points: np.ndarray
    rows: list[np.ndarray]


def inspect_coreset(context: RunContext) -> RunInputs:
    """Return the run's inputs: the clients' examples, their partition, class counts, and notes for the user.

    The field ``prepared`` is a pair: all examples, and the sorted indices of the encoder's training images. If the
    second item is None, the encoder trains on all images.

    Raises:
        UserError: The examples cannot be read or partitioned, or no image is left to train the encoder.
    """
    config = context.method
    task = whole = read_examples(context, config)
    held = None
    if isinstance(config, CoresetKnnSettings) and isinstance(whole, ImageTask):
        held, rest = split_off(config, len(whole.train), context.settings.seed)
        task = replace(whole, train=whole.train.take(rest))
    partition = client_partition(context, task)
    clients = len(partition.train)
    notes = [*whole.notes, *partition.notes]
    if isinstance(config, CoresetSettings) and config.participants > clients:
        notes.append(f"method.participants: all {clients} clients participate")
    counts = of_images(task, partition)
    return RunInputs(task, partition, counts, [*notes, *counts.warnings()], (whole, held))


# ------------------------------------------------------------------------------------------ one coreset of all clients


def run_coreset(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Learn one coreset of all clients' data, and compute the coreset's distance to a sample of the data."""
    config = context.method
    task = inputs.task
    seed = context.settings.seed
    context.begin()
    space = feature_space(context, config, task)
    clients = Clients(space.points(task.train), inputs.partition.train)

    def _advance(state: State, epoch: int, rows: list[LogRow]) -> Advanced:
        if epoch == config.epochs:
            return None
        before = Descent(**{name: tensor.numpy() for name, tensor in state.items()})
        after, row = advance_epoch(config, seed, before, clients, epoch)
        context.progress("epochs", epoch + 1, config.epochs, f"distance {row['loss']:.3f}")
        return _tensors(after), row

    def _start() -> State:
        draw = numpy_generator(seed, "coreset", "start")
        return _tensors(first_descent(config.points, clients.points.shape[1], draw))

    def _log(row: LogRow) -> None:
        context.log({"epoch": row["round"], "loss": row["loss"]})

    state, rows = run_rounds(_advance, context.commits(task.digest), _start, log=_log)
    context.progress("epochs", 1, 1, "done")
    points = state["points"].numpy()
    compared = subsample(np.concatenate(clients.rows), COMPARED, numpy_generator(seed, "coreset", "compared"))
    distance, _ = gradient(points, Measure(clients.points[compared]))  # the objective of the descent
    labels = nearest_labels(points, clients.points, task.train.labels)
    record_coresets(context, inputs, space, record, rows, points, {"labels": torch.from_numpy(labels)})
    record.add(metrics={"distance": {"ALL": distance}}, compared=len(compared), classes_covered=len(np.unique(labels)))


def _tensors(state: Descent) -> State:
    return {name: torch.from_numpy(array) for name, array in vars(state).items()}


def advance_epoch(
    config: CoresetSettings, seed: int, state: Descent, clients: Clients, epoch: int
) -> tuple[Descent, Facts]:
    """Run one epoch. Return the new state and a log row.

    The random choice of participants is seeded by (seed, epoch). Each participant sends a gradient for the coreset's
    points. Then one optimizer step with the mean gradient updates these points.

    The log row holds the participants and their mean distance to the points before the step.
    """
    draw = numpy_generator(seed, "coreset", "participants", epoch)
    count = min(config.participants, len(clients.rows))
    chosen = np.sort(draw.choice(len(clients.rows), count, replace=False)).tolist()
    pulls = [pull(config, state.points, clients, client, (seed, "coreset"), (epoch, client)) for client in chosen]
    distances, gradients = zip(*pulls, strict=True)
    state = descent_step(state, np.sum(gradients, axis=0) / count, config.lr, epoch + 1)
    check_points(state.points, config.lr, f"epoch {epoch + 1}")
    return state, {"loss": float(np.mean(distances)), "participants": chosen}


# ----------------------------------------------------------------------------------------------- shared by both kinds


def subsample(rows: np.ndarray, most: int | None, rng: np.random.Generator) -> np.ndarray:
    """Return a random subset of ``rows``, drawn without replacement.

    The argument ``most`` is the maximum number of rows in the subset. With None, all rows are returned.
    """
    if most is None or len(rows) <= most:
        return rows
    return np.sort(rng.choice(rows, most, replace=False))


def pull(
    config: CoresetSettings | CoresetKnnSettings, points: np.ndarray, clients: Clients, client: int,
    run: tuple[int, str], step: tuple[int, int],
) -> tuple[float, np.ndarray]:  # fmt: skip
    """Return the distance between ``points`` and random samples of ``client``, and a gradient for the points.

    ``points`` and the gradient have shape [K, d]. ``config.distance`` selects the kind of distance. Random draws are
    seeded by ``run`` and ``step``.
    """
    rows = subsample(clients.rows[client], config.samples, numpy_generator(*run, "samples", *step))
    sample = clients.points[rows]
    if config.distance == "exact":  # a baseline that is not federated: the server sees the samples
        return gradient(points, Measure(sample))
    return federated_gradient(points, sample, config.fedwad, partial(numpy_generator, *run, "fedwad", *step))


def check_points(points: np.ndarray, lr: float, where: str) -> None:
    """Check that no coordinate of the ``points`` is NaN, infinite, or so large that its square overflows.

    ``lr`` and ``where`` are used only in the error message.

    Raises:
        UserError: A coordinate is not valid.
    """
    if not np.abs(points).max() < MAX_COORDINATE:  # NaN also takes this branch
        raise UserError(f"with {lr}, the coreset diverged in {where}. Use a smaller rate", "method.lr")


def nearest_labels(points: np.ndarray, samples: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return, for each point, the label of its nearest sample, shape [K] (FedWaD section 4).

    ``points`` has shape [K, d], ``samples`` has shape [n, d], and ``labels`` has shape [n].
    """
    return labels[squared_distances(points, samples).argmin(1)]


def record_coresets(
    context: RunContext, inputs: RunInputs, space: Space | TextSpace, record: RunRecord, rows: list[LogRow],
    points: np.ndarray, more: dict[str, Tensor],
) -> None:  # fmt: skip
    """Write ``coreset.safetensors``, and add to ``record`` the entries common to both kinds of coreset runs.

    The argument ``rows`` contains the log rows of the descent. The file holds these tensors:

    - ``codes``: the coreset points, from the argument ``points``
    - ``points``: the coreset points as images; absent if the examples are texts
    - the tensors in ``more``
    """
    tensors = {"codes": torch.from_numpy(points)}
    if isinstance(space, Space):
        tensors["points"] = torch.from_numpy(space.images(points)).flatten(1)
    write_atomic(context.folder / "coreset.safetensors", tensor_parts(tensors | more))
    partition = inputs.partition
    record.add(
        points=context.method.points,
        shape=list(space.shape),
        clients=len(partition.train),
        datasets={"train": sum(len(rows) for rows in partition.train), "test": len(inputs.task.test)},
        distance=context.method.distance,
        losses=[row["loss"] for row in rows],
    )
    record.seconds.update(descent=total_seconds(rows))


# ------------------------------------------------------------------------------------------------ a coreset per client


def run_coreset_knn(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Learn a coreset of each client's data. Classify each test example by the nearest point among all coresets."""
    config = context.method
    task = inputs.task
    partition = inputs.partition
    whole, held = inputs.prepared
    context.begin()
    space = feature_space(context, config, whole, held)
    clients = Clients(space.points(task.train), partition.train)
    count = len(clients.rows)
    dimension = clients.points.shape[1]

    def _advance(state: State, client: int, rows: list[LogRow]) -> Advanced:
        if client == count:
            return None
        coreset, loss = own_coreset(config, context.settings.seed, clients, client)
        context.progress("coresets", client + 1, count, f"distance {loss:.3f}")
        points = torch.cat([state["points"], torch.from_numpy(coreset[None])])
        return {"points": points}, {"client": client, "loss": loss}

    def _start() -> State:
        return {"points": torch.empty(0, config.points, dimension, dtype=torch.float64)}

    state, rows = run_rounds(_advance, context.commits(whole.digest), _start, log=context.log)
    points = state["points"].numpy()
    labels = own_labels(points, clients, task.train.labels)
    joined = points.reshape(-1, dimension)
    classifier = KNeighborsClassifier(1, algorithm="brute").fit(joined, labels)
    predicted = classifier.predict(space.points(task.test))
    truth = task.test.labels
    facts = context.predicted(np.eye(len(task.classes))[predicted], truth, task.coordinates)
    facts["metrics"] |= {"client_accuracy": client_accuracy(predicted == truth, partition.test)}
    owners = np.repeat(np.arange(count), config.points)
    more = {"labels": torch.from_numpy(labels), "clients": torch.from_numpy(owners)}
    record_coresets(context, inputs, space, record, rows, joined, more)
    record.add(data=whole.digest, **facts)


def client_accuracy(right: np.ndarray, tests: list[np.ndarray]) -> dict[str, float]:
    """Return the accuracy on all test examples as ``weighted``, and the mean client accuracy as ``unweighted``.

    ``right`` states for each test example whether it is classified correctly. ``tests`` holds the indices of each
    client's test examples.
    """
    shares = [right[rows].mean() for rows in tests if len(rows)]
    return {"weighted": float(right.mean()), "unweighted": float(np.mean(shares))}


def split_off(config: CoresetKnnSettings, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted indices of the encoder's training images, and the sorted indices of the clients' images.

    ``count`` is the number of all images. Without an encoder, the clients get all images.

    Raises:
        UserError: The encoder would have no image to train on.
    """
    if config.encoder is None:
        return np.arange(0), np.arange(count)
    taken = round(config.encoder_share * count)
    if taken == 0 and config.encoder.epochs:
        raise UserError(
            f"a share of {config.encoder_share} gives the encoder none of {count} training images. Use a larger share",
            "method.encoder_share",
        )
    order = numpy_generator(seed, "coreset_knn", "split").permutation(count)
    return np.sort(order[:taken]), np.sort(order[taken:])


def own_coreset(config: CoresetKnnSettings, seed: int, clients: Clients, client: int) -> tuple[np.ndarray, float]:
    """Return one client's coreset [K, d], and its distance to random samples of the client.

    The distance is measured just before the last step. Random draws depend only on the seed, the client and
    the epoch.

    Raises:
        UserError: The points diverge.
    """
    draw = numpy_generator(seed, "coreset_knn", client, "start")
    state = first_descent(config.points, clients.points.shape[1], draw)
    loss = 0.0
    for epoch in range(config.epochs):
        loss, slope = pull(config, state.points, clients, client, (seed, "coreset_knn"), (client, epoch))
        state = descent_step(state, slope, config.lr, epoch + 1)
        check_points(state.points, config.lr, f"epoch {epoch + 1} of client {client}")
    return state.points, loss


def own_labels(points: np.ndarray, clients: Clients, labels: np.ndarray) -> np.ndarray:
    """Return the labels of all coreset points, shape [M * K].

    ``points`` [M, K, d] holds K points for each of M clients. A point gets the label of the nearest sample of the same
    client.
    """
    parts = zip(points, clients.rows, strict=True)
    return np.concatenate([nearest_labels(coreset, clients.points[rows], labels[rows]) for coreset, rows in parts])
