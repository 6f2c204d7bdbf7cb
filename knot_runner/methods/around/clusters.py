"""Run a method separately on each cluster of clients. Each cluster has its own model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, Engine, LocalTraining, Trained
from knot_runner.engine.federated.local import EngineRequest
from knot_runner.methods.contract import RoundMethod, State, by_client, entries_below
from knot_runner.methods.federation import FederatedState, Federation, RoundOutcome

#: Log entries that are summed over clusters.
SUMMED = ("bytes_down", "bytes_up", "dropped", "late", "partial", "distill_steps", "distill_tested")
#: Log entries that are averaged over clusters -> the log entry that holds each cluster's weight.
MEANS = {
    "staleness": "arrived",
    "distill_loss": "distill_steps",
    "distill_before": "distill_tested",
    "distill_after": "distill_tested",
}


def per_cluster(method: RoundMethod, clusters: list[Federation]) -> RoundMethod:
    """Return a method that runs ``method`` separately on each of the disjoint ``clusters``.

    One round of the returned method is one round of ``method`` in every cluster. The results of a cluster depend only
    on its own members. The state holds the entry ``<name>`` of each cluster as ``cluster/<number>/<name>``.
    """
    each = _Clusters(method, clusters)
    return replace(
        method, init=each.init, plan=each.plan, fold=each.fold, one_model=False,
        deployed=each.deployed,
        is_finished=method.is_finished and each.is_finished,
    )  # fmt: skip


def cluster_state(state: FederatedState, number: int) -> FederatedState:
    """Return the entries of cluster ``number`` in ``state``, with ``cluster/<number>/`` removed from their names."""
    return entries_below(state, f"cluster/{number}/")


def joint_state(states: list[FederatedState]) -> FederatedState:
    """Combine the clusters' states into one state. ``states`` is in the order of cluster numbers."""
    return {f"cluster/{number}/{name}": value for number, state in enumerate(states) for name, value in state.items()}


def joint_row(rows: list[State]) -> State:
    """Combine the clusters' log entries into one log row.

    Entries in :data:`SUMMED` are summed. Entries in :data:`MEANS` are averaged with weights. A mean is None if all
    weights are 0. ``clock`` is the latest time of all clusters. Other entries are left out.
    """
    joint: State = {}
    for name in SUMMED:
        for row in rows:
            if name in row:
                joint[name] = joint.get(name, 0) + row[name]
    for name, weight in MEANS.items():
        known = [row for row in rows if name in row]
        weights = [row[weight] for row in known]
        if any(weights):
            joint[name] = float(np.average([row[name] or 0.0 for row in known], weights=weights))
        elif known:
            joint[name] = None
    for row in rows:
        if "clock" in row:
            joint["clock"] = max(row["clock"], joint.get("clock", 0.0))
    return joint


@dataclass(frozen=True)
class _Clusters:
    """A :class:`RoundMethod` around ``method``: each function calls the function of ``method`` once per cluster."""

    method: RoundMethod
    clusters: list[Federation]

    def each(self, state: FederatedState) -> Iterator[tuple[Federation, FederatedState]]:
        """Yield every cluster with its entries of ``state``."""
        for number, cluster in enumerate(self.clusters):
            yield cluster, cluster_state(state, number)

    def init(self, config: FederatedSettings, _: Federation) -> FederatedState:
        """Return the initial states of all clusters as one state."""
        return joint_state([self.method.init(config, cluster) for cluster in self.clusters])

    def plan(self, config: FederatedSettings, state: FederatedState, _: Federation, round: int) -> list[LocalTraining]:
        """Return the requests of all clusters."""
        requests: list[LocalTraining] = []
        for cluster, part in self.each(state):
            requests += self.method.plan(config, part, cluster, round)
        return requests

    def fold(
        self, config: FederatedSettings, state: FederatedState, _: Federation, round: int,
        requests: list[LocalTraining], trained: list[Trained], engine: Engine,
    ) -> RoundOutcome:  # fmt: skip
        """Take each cluster's server step on the messages of that cluster, and run each cluster's exchange."""
        states = []
        rows = []
        joint: list[EngineRequest] = []
        for cluster, part in self.each(state):
            row: State = {}
            work, results = _cluster_work(cluster, requests, trained)
            if work or (self.method.is_finished and not self.method.is_finished(config, part, cluster, round)):
                part, row, further = self.method.fold(config, part, cluster, round, work, results, engine)
                joint += further
            states.append(part)
            rows.append({**row, "arrived": len(by_client(work))})
        return joint_state(states), joint_row(rows), joint

    def deployed(self, config: FederatedSettings, state: FederatedState, _: Federation, client: int) -> ClientModel:
        """Return the model of the client's cluster."""
        for cluster, part in self.each(state):
            if client in cluster.numbers:
                return self.method.deployed(config, part, cluster, client)
        raise KeyError(client)

    def is_finished(self, config: FederatedSettings, state: FederatedState, _: Federation, round: int) -> bool:
        """Return whether every cluster has finished."""
        return all(self.method.is_finished(config, part, cluster, round) for cluster, part in self.each(state))


def _cluster_work(
    cluster: Federation, requests: list[LocalTraining], trained: list[Trained]
) -> tuple[list[LocalTraining], list[Trained]]:
    """Return those requests of a round that belong to ``cluster``, and the results of these requests, in order."""
    members = set(cluster.numbers)
    work = [request for request in requests if request.client in members]
    return work, [result for result in trained if result.client in members]
