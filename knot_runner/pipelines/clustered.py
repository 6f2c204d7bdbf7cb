"""Clustered federated learning: distances between the clients' data, clusters, then the method in each (FedWaD 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from knot_runner.config.settings import Centralised
from knot_runner.engine.federated.cohort import Engine
from knot_runner.engine.seeds import keyed
from knot_runner.methods.contract import Method
from knot_runner.methods.federated import clustering
from knot_runner.methods.federated.clustering import Clusters
from knot_runner.methods.federated.per_cluster import joint_state, per_cluster
from knot_runner.pipelines import matrix
from knot_runner.pipelines.clients.setup import Setup
from knot_runner.pipelines.clusters.rows import merged, write_rows
from knot_runner.pipelines.clusters.training import ClusterWork, measure_unmerged, train_clusters, unmerged_metrics
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.rounds.loop import TrainingResult
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class Grouping:
    """The clusters of a run's clients, their facts for the result, and the cost of finding them."""

    clusters: Clusters
    facts: dict[str, Any]
    notes: list[str]
    seconds: dict[str, float] = field(default_factory=dict)


def group_clients(context: RunContext, setup: Setup) -> Grouping:
    """Computes distances and clusters, before any training. Raises :class:`UserError`."""
    settings, spec = context.settings, context.hp.clustering
    if spec.graph == "none":
        found, seconds, notes = clustering.one_cluster(len(setup.federation)), {}, []
    else:
        sets = matrix.labelled(context, spec.otdd, setup.task, setup.partition.train, settings.seed)
        between = matrix.compute_distances(context, sets, setup.partition.names, spec.otdd, setup.task.digest)
        found = clustering.cluster(between.matrix, spec, keyed(settings.seed, "clustering"))
        seconds = {"distances": round(between.seconds, 2)}
        notes = matrix.subsample_note(spec.otdd, setup.partition, setup.task)
    sizes = [len(members) for members in found.members]
    planted = clustering.adjusted_rand(found.labels, setup.partition.groups) if spec.graph != "none" else None
    facts = {
        "graph": spec.graph,
        "count": len(sizes),
        "sizes": sizes,
        "labels": found.labels,
        "ari": planted,
        "eigenvalues": found.eigenvalues,
    }
    later = [f"{name}: of clusters, measured after the last round only" for name in unmerged_metrics()]
    return Grouping(found, facts, [*notes, *found.notes, *_few(context, sizes), *later], seconds)


def learn(
    grouping: Grouping,
    context: RunContext,
    setup: Setup,
    method: Method,
    engine: Engine,
) -> TrainingResult:
    """Trains each cluster separately; returns the merged rows, state and models."""
    clusters = [setup.federation.cluster(members) for members in grouping.clusters.members]
    work = ClusterWork(context, setup, method, engine)
    finished = train_clusters(work, clusters)
    rows = merged([one.rows for one in finished], clusters)
    joint, states = per_cluster(method, clusters), joint_state([one.state for one in finished])
    measure_unmerged(work, joint, states, rows)
    write_rows(context, rows)
    facts = {"clusters": grouping.facts | {"artefacts": [one.key for one in finished]}}
    return TrainingResult(joint, states, rows, facts, grouping.seconds)


def check_clients(context: RunContext, setup: Setup) -> None:
    """Raises :class:`UserError` for settings that cannot work, whatever the distances are."""
    if isinstance(context.settings.partition, Centralised):
        raise UserError(
            "method.clustering: partition=centralised has one client, and clusters are of several; "
            "partition=pairs, or method.clustering=null, would fit"
        )
    if context.settings.training.stop_at_target:
        raise UserError(
            "training.stop_at_target: a cluster's rounds do not depend on the other clusters, so none ends early; "
            "false is right"
        )
    clustering.check_clustering(context.hp.clustering, len(setup.federation))


def _few(context: RunContext, sizes: list[int]) -> list[str]:
    """Returns a note where a cluster has fewer clients than a round samples."""
    wanted_clients = context.settings.training.participants
    small = sum(size < wanted_clients for size in sizes)
    if isinstance(wanted_clients, float) or not small:
        return []
    return [
        f"training.participants: {small} clusters have fewer than {wanted_clients} clients, which then take part in "
        "all rounds"
    ]
