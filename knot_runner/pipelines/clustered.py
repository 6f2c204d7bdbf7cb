"""Clusters of a run's clients, by the distances between their data (FedWaD 4)."""

from __future__ import annotations

from dataclasses import dataclass, field

from knot_runner.config.settings import FederatedTraining
from knot_runner.engine.seeds import keyed
from knot_runner.methods.federated import clustering
from knot_runner.methods.federation import Federation
from knot_runner.pipelines import matrix
from knot_runner.pipelines.clients.setup import Setup
from knot_runner.pipelines.context import RunContext, as_kind
from knot_runner.util.files import Facts


@dataclass(frozen=True)
class Grouping:
    """The clusters of a run's clients, their facts for the result, and the seconds of finding them."""

    clusters: list[Federation]
    facts: Facts
    notes: list[str]
    seconds: dict[str, float] = field(default_factory=dict)


def group_clients(context: RunContext, setup: Setup) -> Grouping:
    """Computes distances and clusters, before any training. Raises :class:`UserError`."""
    settings, spec = context.settings, context.method.clustering
    planted = None
    if spec.graph == "none":
        found, seconds, notes = clustering.one_cluster(len(setup.federation)), {}, []
    else:
        sets = matrix.labeled(context, spec.otdd, setup.task, setup.partition.train, settings.seed)
        between = matrix.compute_distances(context, sets, setup.partition.names, spec.otdd, setup.task.digest)
        distances = between.tensors()["matrix"].numpy()
        found = clustering.cluster(distances, spec, keyed(settings.seed, "clustering"))
        planted = clustering.adjusted_rand(found.labels, setup.partition.groups)
        seconds = {"distances": round(between.info["seconds"], 2)}
        notes = matrix.subsample_note(spec.otdd, setup.partition, setup.task)
    sizes = [len(members) for members in found.members]
    facts = {
        "graph": spec.graph,
        "count": len(sizes),
        "sizes": sizes,
        "labels": found.labels,
        "ari": planted,
        "eigenvalues": found.eigenvalues,
    }
    notes = [*notes, *found.notes]
    wanted = as_kind(settings.training, FederatedTraining).clients_per_round
    small = sum(size < wanted for size in sizes)
    if isinstance(wanted, int) and small:
        notes.append(
            f"training.clients_per_round: {small} clusters have fewer than {wanted} clients, which then take part in "
            "all rounds"
        )
    return Grouping([setup.federation.cluster(members) for members in found.members], facts, notes, seconds)
