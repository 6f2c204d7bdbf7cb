"""Clusters of clients, each trained once: finished clusters are loaded, the others train together in one cohort.

A finished cluster is an artefact below ``<out>/artefacts/clusters/``, keyed by all inputs of its training (members and
their images, settings, seed, engine), not by how the clusters were found, so that runs with other graphs share it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import operator
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner import metrics
from knot_runner.config.strict import digest, without
from knot_runner.data.images import ImageTask
from knot_runner.engine.federated.cohort import Engine, Trained
from knot_runner.engine.store import Artefact, Store
from knot_runner.methods.contract import Method, RoundWork
from knot_runner.methods.federated.costs import round_costs
from knot_runner.methods.federated.per_cluster import cluster_state, cluster_work, per_cluster, work_of_cluster
from knot_runner.methods.federation import FederatedState, Federation
from knot_runner.pipelines.clients.setup import Setup
from knot_runner.pipelines.clusters import rows as cluster_rows
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds import scores
from knot_runner.pipelines.rounds.client_rounds import client_rounds
from knot_runner.pipelines.rounds.loop import run_rounds
from knot_runner.pipelines.runs.commits import LogRow
from knot_runner.records import ROUNDS_FILE

CLUSTERS_STAGE = "clusters"
#: Settings of training and method that decide nothing of a cluster's rounds.
NOT_IN_KEY = ("name", "target", "stop_at_target", "clustering", "personalisation")


@dataclass(frozen=True)
class ClusterWork:
    """Inputs of the training of clusters."""

    context: RunContext
    setup: Setup
    method: Method
    engine: Engine

    @property
    def store(self) -> Store:
        return self.context.store

    @property
    def folder(self) -> Path:
        """The folder of the run's commits until all clusters are finished."""
        return self.context.folder / "training"


@dataclass(frozen=True)
class Finished:
    """A cluster after all its rounds."""

    key: str
    state: FederatedState
    rows: list[LogRow]


def train_clusters(work: ClusterWork, clusters: list[Federation]) -> list[Finished]:
    """Returns every cluster's final state and rows, in order. Raises :class:`DivergedError` and :class:`UserError`.

    A cluster's result does not depend on which clusters train beside it, up to the rounding of engine=stacked, which
    depends on the stack's width.
    """
    by_key = {cluster_key(work, cluster): cluster for cluster in clusters}
    store = work.store
    with contextlib.ExitStack() as locks:
        for key in sorted(by_key):  # one order of locks for all processes, so that none deadlock
            if store.find(CLUSTERS_STAGE, key) is None:
                locks.enter_context(store.lock(CLUSTERS_STAGE, key))
        missing = {key: cluster for key, cluster in by_key.items() if store.find(CLUSTERS_STAGE, key) is None}
        if len(missing) < len(by_key):
            trained = f"{len(by_key) - len(missing)} of {len(by_key)} clusters have been trained before"
            if work.context.hp.clustering is None:
                trained = "the rounds have been trained before, and are shared"
            work.context.note(trained)
        if missing:
            _train_missing(work, missing)
    shutil.rmtree(work.folder, ignore_errors=True)
    return [_read(store.get(CLUSTERS_STAGE, key)) for key in by_key]


def measure_unmerged(work: ClusterWork, method: Method, state: FederatedState, rows: list[LogRow]) -> None:
    """Adds to the last of the merged ``rows`` every metric that cannot be merged from clusters' rows, on the test
    examples of all clients; ``method`` and ``state``: of all clusters."""
    if not unmerged_metrics():
        return
    context, setup = work.context, work.setup
    found = scores.predict_test(method, context.hp, state, setup.federation, setup.test.labels, work.engine)
    temperature = scores.evaluation_temperature(context.hp, rows[-1]["round"] - 1)
    measured = scores.score(found, setup.federation, temperature, setup.task.coordinates)
    rows[-1] |= {name: measured[name] for name in unmerged_metrics() if name in measured}


def unmerged_metrics() -> list[str]:
    """Returns the metrics of predictions that clusters' rows do not hold: those of plug-ins."""
    return [name for name in metrics.computed_metrics() if name not in cluster_rows.MERGED]


def cluster_key(work: ClusterWork, cluster: Federation) -> str:
    """Returns the content address of the cluster's training."""
    settings = work.context.settings
    hardware, name = settings.hardware, work.engine.name
    rows = hashlib.sha256()
    for client in cluster.numbers:
        for own in (cluster.clients[client].train, cluster.clients[client].test):
            rows.update(len(own).to_bytes(8) + own.numpy().tobytes())
    plain = {
        "seed": settings.seed,
        "task": [*_examples_key(work), work.setup.task.coordinates, cluster.augment],
        "model": settings.model,
        "plugins": settings.plugins,
        "engine": [name, hardware.precision, hardware.stack if name == "stacked" else None],
        "clients": [len(cluster.clients), list(cluster.numbers), rows.hexdigest()],
    }
    training = dataclasses.asdict(settings.training)
    method = dataclasses.asdict(work.context.hp)
    if settings.fleet is not None:
        plain["fleet"] = settings.fleet
    if cluster.server is not None:
        plain["server"] = _server_key(cluster)
    used = {"training": without(training, *NOT_IN_KEY), "method": without(method, *NOT_IN_KEY)}
    return digest({**plain, **used})


def _server_key(cluster: Federation) -> list[Any]:
    """Returns the key's entries for the examples that the server distils on, as far as settings do not decide them."""
    rows = [cluster.transfer.train, cluster.random, cluster.server.test]
    return [*(hashlib.sha256(own.numpy().tobytes()).hexdigest() for own in rows), cluster.label_points]


def _examples_key(work: ClusterWork) -> list[Any]:
    """Returns the key's entries for the examples as network inputs. For texts: their tokens, which depend on vocabulary
    and ``task.max_length``, and the initial weights, which may come from a file."""
    setup = work.setup
    if isinstance(setup.task, ImageTask):
        return [setup.task.digest, setup.task.mean, setup.task.std]
    content = hashlib.sha256()
    for tensor in (*setup.data.tensors(), *setup.test.tensors(), setup.federation.model.weights):
        content.update(f"{tensor.dtype} {list(tensor.shape)}".encode() + tensor.cpu().numpy().tobytes())
    return [setup.task.digest, content.hexdigest()]


def _train_missing(work: ClusterWork, missing: dict[str, Federation]) -> None:
    """Trains all rounds of unfinished clusters and writes their artefacts; call under their locks."""
    hp, clusters = work.context.hp, list(missing.values())
    method = per_cluster(work.method, clusters)
    everyone = work.setup.federation.cluster([client for cluster in clusters for client in cluster.numbers])

    flops = work.setup.example_flops

    def measure(round: int, state: FederatedState, done: RoundWork, trained: list[Trained], measured: bool) -> LogRow:
        parts = [scores.local_facts(*cluster_work(cluster, done.requests, trained)) for cluster in clusters]
        for number, cluster in enumerate(clusters):
            parts[number] |= round_costs(work.method, hp, cluster, work_of_cluster(number, done), flops)
        if not measured:
            return {"parts": parts}
        found = scores.predict_test(method, hp, state, everyone, work.setup.test.labels, work.engine)
        scores.check_logits(found, round)
        temperature, points = scores.evaluation_temperature(hp, round), work.setup.task.coordinates
        for row, cluster in zip(parts, clusters, strict=True):
            row |= cluster_rows.measured_row(found, everyone, cluster, temperature, points)
        tables = [np.array(part["confusion"]) for part in parts]
        return {"parts": parts, "accuracy": metrics.accuracy(sum(tables))}

    data = digest(list(missing))
    loop = client_rounds(work.context, method, everyone, data, work.folder, work.engine, measure)
    state, rows = run_rounds(loop)
    for number, (key, cluster) in enumerate(missing.items()):
        _write(work.store, key, cluster, cluster_state(state, number), _rows_of(rows, number))


def _rows_of(rows: list[LogRow], number: int) -> list[LogRow]:
    """Returns the rows of one cluster; a round's seconds are divided among clusters by their steps."""
    found = []
    for row in rows:
        after_training = [row[key][number] for key in ("folded", "exchanged") if key in row]
        own = functools.reduce(operator.or_, after_training, row["parts"][number])
        share = own["steps"] / max(sum(other["steps"] for other in row["parts"]), 1)
        found.append({"round": row["round"], **own, "seconds": row["seconds"] * share})
    return found


def _write(store: Store, key: str, cluster: Federation, state: FederatedState, rows: list[LogRow]) -> None:
    log = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    seconds = round(sum(row["seconds"] for row in rows), 2)
    info: dict[str, Any] = {"members": list(cluster.numbers), "seconds": seconds}
    store.put(CLUSTERS_STAGE, key, state, info, {ROUNDS_FILE: log})


def _read(artefact: Artefact) -> Finished:
    return Finished(
        artefact.key, artefact.tensors(), [json.loads(line) for line in artefact.read(ROUNDS_FILE).splitlines()]
    )
