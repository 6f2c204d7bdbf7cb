"""Clustering of clients by the distances between their data (FedWaD section 4).

The distances are stored. Later runs with the same inputs reuse them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch

from knot_runner.config.settings.methods.transport import OtddSettings
from knot_runner.config.strict import digest as digest_of
from knot_runner.config.strict import without
from knot_runner.data.images import ImageTask, Partition
from knot_runner.data.pools import TextPool
from knot_runner.engine.commit import join_machines
from knot_runner.engine.seeds import keyed, numpy_generator
from knot_runner.engine.store import Artifact
from knot_runner.methods.federated import clustering
from knot_runner.methods.federation import Federation
from knot_runner.pipelines.clients import Setup
from knot_runner.pipelines.context import RunContext, RunRecord
from knot_runner.pipelines.features.encoding import feature_space
from knot_runner.pipelines.rounds import Advanced, State, run_rounds
from knot_runner.records import ROUNDS_FILE, WRITTEN_BY
from knot_runner.transport.otdd.matrix import computed_distances
from knot_runner.transport.otdd.statistics import LabeledSamples
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow, digest_of_parts, removal
from knot_runner.util.processes import cores


def group_clients(context: RunContext, setup: Setup, record: RunRecord) -> list[Federation]:
    """Cluster the clients by the distances between their data; return the clusters.

    Facts about the clusters are added to ``record``. With ``clustering.graph=none``, all clients form one cluster.

    Raises:
        UserError: A setting does not fit the clients.
    """
    spec = context.method.clustering
    seed = context.settings.seed
    partition = setup.partition
    planted = None
    if spec.graph == "none":
        clusters = clustering.one_cluster(len(setup.federation))
    else:
        sets = labeled(context, spec.otdd, setup.task, partition.train, seed)
        between = compute_distances(context, sets, spec.otdd, setup.task.digest)
        distances = between.tensors()["matrix"].numpy()
        clusters = clustering.cluster(distances, spec, keyed(seed, "clustering"))
        planted = clustering.adjusted_rand(clusters.labels, partition.groups)
        record.seconds.update(distances=round(between.info["seconds"], 2))
        for note in subsample_note(spec.otdd, partition, setup.task):
            record.note(note)
    sizes = list(map(len, clusters.members))
    record.add(
        clusters={
            "graph": spec.graph,
            "count": len(sizes),
            "sizes": sizes,
            "labels": clusters.labels,
            "ari": planted,
            "eigenvalues": clusters.eigenvalues,
        }
    )
    for note in clusters.notes:
        record.note(note)
    wanted = setup.federation.training.clients_per_round
    small = sum(size < wanted for size in sizes)
    if isinstance(wanted, int) and small:
        record.note(
            f"training.clients_per_round: {small} clusters have fewer than {wanted} clients, so all clients of these "
            "clusters participate in every round"
        )
    return list(map(setup.federation.cluster, clusters.members))


# ---------------------------------------------------------------------------------------------------------- distances

DISTANCES_STAGE = "distances"


def labeled(
    context: RunContext, otdd: OtddSettings, task: ImageTask | TextPool, rows: list[np.ndarray], seed: int
) -> list[LabeledSamples]:
    """Return the training examples of each client as labeled points.

    The points of a client have shape [n, d]. If a client has more than ``otdd.samples`` examples, a random subset of
    this size is drawn, seeded by (seed, client).

    Args:
        context: The run.
        otdd: Settings that define the points and the size of the subset.
        task: The examples of all clients.
        rows: For each client, the row numbers of its examples in ``task.train``.
        seed: The run's seed.

    Raises:
        UserError: A client has no examples, or a point is not finite.
    """
    where = feature_space(context, otdd, task)
    what = _called(task)
    sets = []
    for client, client_rows in enumerate(rows):
        if not len(client_rows):
            raise UserError(f"client {client} of {len(rows)}: no training {what}, so distances to it are undefined")
        if len(client_rows) > otdd.samples:
            rng = numpy_generator(seed, "otdd", "samples", client)
            client_rows = client_rows[np.sort(rng.permutation(len(client_rows))[: otdd.samples])]
        examples = task.train.take(client_rows)
        try:
            sets.append(LabeledSamples(where.points(examples), examples.labels))
        except UserError as problem:
            raise UserError(f"client {client} of {len(rows)}: {problem}") from None
    return sets


def compute_distances(context: RunContext, sets: list[LabeledSamples], otdd: OtddSettings, digest: str) -> Artifact:
    """Return the squared distances between all pairs of the N ``sets`` of examples, as an artifact of the store.

    The artifact's tensor ``matrix``, float64 [N, N], is symmetric with a zero diagonal. The artifact's
    ``info["seconds"]`` is the total computing time. If a process is killed, the next process computes only the
    missing pairs.

    ``digest`` identifies the data. Runs with the same data, sampled examples, settings and seed use the same artifact.

    Raises:
        UserError: A distance is not finite.
    """
    key = _key(sets, otdd, digest, context.settings.seed)
    with context.store.lock(DISTANCES_STAGE, key):
        artifact = context.store.find(DISTANCES_STAGE, key) or _measured(context, key, sets, otdd)
    join_machines([artifact.info], context.note)
    return artifact


def _measured(context: RunContext, key: str, sets: list[LabeledSamples], otdd: OtddSettings) -> Artifact:
    """Compute the distances, one tile (group of pairs) per round, and store the distances as an artifact."""
    settings = context.settings
    store = context.store
    count = len(sets)
    pairs = math.comb(len(sets), 2)
    folder = store.folder(DISTANCES_STAGE, key)
    workers = settings.hardware.num_workers or cores()
    commits = context.commits(key, folder)
    tiles: Iterator[dict[tuple[int, int], float]] | None = None

    def advance(state: State, round: int, rows: list[LogRow]) -> Advanced:
        """Compute one tile of pairs."""
        nonlocal tiles
        matrix = state["matrix"]  # distances of finished pairs, above the diagonal; NaN elsewhere
        if tiles is None:
            known = {(i, j): float(matrix[i, j]) for i, j in matrix.isfinite().nonzero().tolist()}
            tiles = computed_distances(sets, otdd, settings.seed, workers, known)
        finished = next(tiles, None)
        if finished is None:
            return None
        for pair, value in finished.items():
            matrix[pair] = value
        context.progress(DISTANCES_STAGE, int(matrix.isfinite().sum()), pairs, "")
        return {"matrix": matrix}, {"pairs": len(finished)}

    empty = torch.full((count, count), math.nan, dtype=torch.float64)
    state, rows = run_rounds(advance, commits, lambda: {"matrix": empty})
    context.progress(DISTANCES_STAGE, pairs, pairs, "done")
    upper = state["matrix"].nan_to_num(0.0)
    info = {"pairs": pairs, "seconds": sum(row["seconds"] for row in rows), "machines": commits.machines}
    artifact = store.put(DISTANCES_STAGE, key, {"matrix": upper + upper.T}, info)
    with removal():
        (folder / ROUNDS_FILE).unlink(missing_ok=True)
    return artifact


def _key(sets: list[LabeledSamples], otdd: OtddSettings, data: str, seed: int) -> str:
    """Return the artifact's key. It contains a digest of the samples, which covers rows, encoder and features."""
    content: list[bytes | memoryview] = []
    for samples in sets:
        for array in (samples.points, samples.labels):
            content += [f"{array.dtype} {array.shape}".encode(), np.ascontiguousarray(array).data]
    used = without(asdict(otdd), "encoder", "features", "samples")
    if otdd.solver == "exact":
        used = without(used, "fedwad", "precision")
    about = {"version": WRITTEN_BY, "otdd": used, "data": data, "samples": digest_of_parts(content), "seed": seed}
    return digest_of(about)


def subsample_note(otdd: OtddSettings, partition: Partition, task: ImageTask | TextPool) -> list[str]:
    """Return a list with a note if the distances use only some of a client's examples; otherwise an empty list."""
    larger = sum(len(rows) > otdd.samples for rows in partition.train)
    if not larger:
        return []
    more = f"more than otdd.samples={otdd.samples} {_called(task)}"
    return [f"{larger} of {len(partition.train)} sets have {more}, of which a random subset of this size is used"]


def _called(task: ImageTask | TextPool) -> str:
    return "texts" if isinstance(task, TextPool) else "images"
