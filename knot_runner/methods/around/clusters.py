"""Run a method on clusters of clients: each cluster has its own model and does not depend on the other clusters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from knot_runner.config.settings.methods.federated import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, Engine, LocalTraining, Trained
from knot_runner.methods.contract import FurtherWork, RoundMethod, State
from knot_runner.methods.federation import FederatedState, Federation

#: Log entries that are summed over clusters.
BYTES = ("bytes_down", "bytes_up")


def per_cluster(method: RoundMethod, clusters: list[Federation]) -> RoundMethod:
    """Return a method that runs ``method`` on each of the disjoint ``clusters``, in one cohort.

    State: ``cluster/<number>/<name>`` is entry ``<name>`` of that cluster's state. A cluster's results depend only on
    its members.
    """
    each = _Clusters(method, clusters)
    return replace(
        method,
        init=each.init,
        plan=each.plan,
        fold=each.fold,
        deployed=method.deployed and each.deployed,
        one_model=False,
        exchange=method.exchange and each.exchange,
        is_finished=method.is_finished and each.is_finished,
    )


def cluster_state(state: FederatedState, number: int) -> FederatedState:
    """Return the state of cluster ``number``, under the entry names that the method uses."""
    prefix = f"cluster/{number}/"
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def joint_state(states: list[FederatedState]) -> FederatedState:
    """Return the states of all clusters, in order, as one state."""
    return {f"cluster/{number}/{name}": value for number, state in enumerate(states) for name, value in state.items()}


@dataclass(frozen=True)
class _Clusters:
    """The functions of :class:`RoundMethod`, each of which calls the method once per cluster."""

    method: RoundMethod
    clusters: list[Federation]

    def init(self, config: FederatedSettings, _: Federation) -> FederatedState:
        """Return the initial states of all clusters as one state."""
        return joint_state([self.method.init(config, cluster) for cluster in self.clusters])

    def plan(self, config: FederatedSettings, state: FederatedState, _: Federation, round: int) -> list[LocalTraining]:
        """Return the requests of all clusters."""
        requests: list[LocalTraining] = []
        for number, cluster in enumerate(self.clusters):
            requests += self.method.plan(config, cluster_state(state, number), cluster, round)
        return requests

    def fold(
        self, config: FederatedSettings, state: FederatedState, _: Federation, round: int,
        requests: list[LocalTraining], trained: list[Trained],
    ) -> tuple[FederatedState, State]:  # fmt: skip
        """Fold the messages of each cluster. :func:`on_clock` combines the log entries."""
        rows: list[State] = []
        folded, participants = [], []
        for number, cluster in enumerate(self.clusters):
            after = cluster_state(state, number)
            row: State = {}
            work, results = _cluster_work(cluster, requests, trained)
            if work or (self.method.is_finished and not self.method.is_finished(config, after, cluster, round)):
                after, row = self.method.fold(config, after, cluster, round, work, results)
            folded.append(after)
            rows.append(row)
            participants.append(len({result.client for result in results}))
        return joint_state(folded), _bytes(rows) | on_clock(rows, participants)

    def exchange(
        self, config: FederatedSettings, state: FederatedState, _: Federation, round: int,
        requests: list[LocalTraining], trained: list[Trained], engine: Engine,
    ) -> tuple[FederatedState, State, FurtherWork]:  # fmt: skip
        """Run the exchange of each cluster. :func:`_distilled` combines the log entries."""
        states = []
        rows: list[State] = []
        joint = FurtherWork()
        for number, cluster in enumerate(self.clusters):
            after = cluster_state(state, number)
            work, results = _cluster_work(cluster, requests, trained)
            if work:
                after, row, further = self.method.exchange(config, after, cluster, round, work, results, engine)
                rows.append(row)
                joint.inferences.extend(further.inferences)
                joint.distillation.extend(further.distillation)
            states.append(after)
        return joint_state(states), _bytes(rows) | _distilled([row for row in rows if "distill_steps" in row]), joint

    def deployed(self, config: FederatedSettings, state: FederatedState, _: Federation, client: int) -> ClientModel:
        """Return the model of the client's cluster."""
        number = next(number for number, cluster in enumerate(self.clusters) if client in cluster.numbers)
        return self.method.deployed(config, cluster_state(state, number), self.clusters[number], client)

    def is_finished(self, config: FederatedSettings, state: FederatedState, _: Federation, round: int) -> bool:
        """Return whether every cluster has finished."""
        parts = enumerate(self.clusters)
        return all(self.method.is_finished(config, cluster_state(state, at), group, round) for at, group in parts)


def _cluster_work(
    cluster: Federation, requests: list[LocalTraining], trained: list[Trained]
) -> tuple[list[LocalTraining], list[Trained]]:
    """Return the cluster's part of a round: its requests and their results, in order."""
    members = set(cluster.numbers)
    work = [request for request in requests if request.client in members]
    return work, [result for result in trained if result.client in members]


def _bytes(rows: list[State]) -> State:
    return {name: sum(row.get(name, 0) for row in rows) for name in BYTES}


def on_clock(rows: list[State], participants: list[int]) -> State:
    """Combine the fleet's log entries of all clusters; return {} without a fleet.

    Each cluster has its own clock, and the latest clock is reported.

    Args:
        rows: The log entries of each cluster. They have no ``clock`` if the run has no fleet.
        participants: The number of clients of each cluster that took part.
    """
    if not all("clock" in row for row in rows):
        return {}
    entries: State = {key: sum(row[key] for row in rows) for key in ("dropped", "late", "partial")}
    staleness = _mean([row["staleness"] for row in rows], participants)
    return {"clock": max(row["clock"] for row in rows), **entries, "staleness": staleness}


def _distilled(rows: list[State]) -> State:
    """Combine the log entries of the clusters' server distillation; return {} if no server distills.

    Losses are averaged over steps, and accuracies over test examples.
    """
    if not rows:
        return {}
    steps = [row["distill_steps"] for row in rows]
    losses = [row["distill_loss"] for row in rows]
    entries: State = {"distill_loss": _mean(losses, steps), "distill_steps": sum(steps)}
    if "distill_terms" in rows[0]:
        entries["distill_terms"] = {}
        for name, facts in rows[0]["distill_terms"].items():
            means = {key: _mean([row["distill_terms"][name][key] for row in rows], steps) for key in facts}
            entries["distill_terms"][name] = means
    if all("distill_after" in row for row in rows):
        tested = [row["distill_tested"] for row in rows]
        for key in ("distill_before", "distill_after"):
            entries[key] = _mean([row[key] for row in rows], tested)
        entries["distill_tested"] = sum(tested)
    return entries


def _mean(values: list[float | None], weights: list[int]) -> float | None:
    """Return the weighted mean of ``values``, or None if all weights are 0. A value whose weight is 0 may be None."""
    if not sum(weights):
        return None
    known = [value if weight else 0.0 for value, weight in zip(values, weights, strict=True)]
    return float(np.average(known, weights=weights))
