"""The kind of run that computes all pairwise distances between clients' data, or between data sets."""

from __future__ import annotations

import itertools
import math

from knot_runner.data.counts import of_images
from knot_runner.data.images import ImageTask, Partition
from knot_runner.data.pools import TextPool
from knot_runner.papers.fedwad.image_sets import load_image_sets
from knot_runner.papers.fedwad.settings import ImageSetsSettings
from knot_runner.pipelines.clustered import compute_distances, labeled, subsample_note
from knot_runner.pipelines.context import RunContext, RunInputs, RunRecord
from knot_runner.pipelines.features.encoding import client_partition, read_examples
from knot_runner.util.errors import UserError

#: Maximum number of data sets or clients in one run. Clustering has no such limit.
MAX_LABELS = 500


def run_matrix(context: RunContext, inputs: RunInputs, record: RunRecord) -> None:
    """Compute and record the distance of every pair of clients or data sets.

    Raises:
        UserError: A client has no examples, or a distance is not finite.
    """
    otdd = context.method.otdd
    task = inputs.task
    partition = inputs.partition
    context.begin()
    sets = labeled(context, otdd, task, partition.train, context.settings.seed)
    artifact = compute_distances(context, sets, otdd, task.digest)
    matrix = artifact.tensors()["matrix"].tolist()
    for first, second in itertools.combinations(range(len(sets)), 2):
        context.log({"first": first, "second": second, "distance": matrix[first][second]})
    record.add(
        solver=otdd.solver,
        names=partition.names,
        sizes=[len(samples.labels) for samples in sets],
        groups=partition.groups,
        pairs=math.comb(len(sets), 2),
        matrix=matrix,
        artifact=artifact.key,
    )
    record.seconds.update(distances=round(artifact.info["seconds"], 3))


def inspect_matrix(context: RunContext) -> RunInputs:
    """Return the run's inputs: the examples, their partition, class counts, and notes for the user.

    Raises:
        UserError: The examples cannot be read or partitioned, or the number of clients or data sets is not supported.
    """
    task, partition = clients_data(context)
    if len(partition.names) < 2:
        key = "partition" if context.settings.partition is not None else "task"
        raise UserError(f"there is only one data set, {partition.names[0]}. Use at least two", key)
    if len(partition.names) > MAX_LABELS:
        raise UserError(
            f"method=dataset_distance supports at most {MAX_LABELS} clients, got {len(partition.names)}",
            "partition.num_clients",
        )
    counts = of_images(task, partition, same_classes=context.settings.partition is not None)
    notes = [*task.notes, *partition.notes, *counts.warnings(), *subsample_note(context.method.otdd, partition, task)]
    return RunInputs(task, partition, counts, notes)


def clients_data(context: RunContext) -> tuple[ImageTask | TextPool, Partition]:
    """Return the examples, and their partition into clients or data sets.

    Raises:
        UserError: The examples cannot be read, or the partition is not possible.
    """
    if isinstance(context.settings.task, ImageSetsSettings):
        return load_image_sets(context.settings.task, context.data_root)
    task = read_examples(context, context.method.otdd)
    return task, client_partition(context, task)
