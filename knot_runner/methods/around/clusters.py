"""Several clusters of clients as one method: each has its own model and is independent of the others."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, Engine, LocalTraining, Trained
from knot_runner.methods.contract import FurtherWork, RoundMethod, State
from knot_runner.methods.federation import FederatedState, Federation

#: Log entries that are summed over clusters.
BYTES = ("bytes_down", "bytes_up")


def per_cluster(method: RoundMethod, clusters: list[Federation]) -> RoundMethod:
    """``method`` on each of ``clusters`` (disjoint), all in one state, so that a round trains one cohort of all.

    State: ``cluster/<number>/<name>`` is ``<name>`` of that cluster's state. What a cluster learns depends on its
    members alone.
    """
    bound = functools.partial
    return dataclasses.replace(
        method,
        init=bound(_init, method, clusters),
        plan=bound(_plan, method, clusters),
        fold=bound(_fold, method, clusters),
        deployed=method.deployed and bound(_deployed, method, clusters),
        one_model=False,
        exchange=method.exchange and bound(_exchange, method, clusters),
        is_finished=method.is_finished and bound(_is_finished, method, clusters),
    )


def cluster_state(state: FederatedState, number: int) -> FederatedState:
    """The state of cluster ``number`` by itself."""
    prefix = f"cluster/{number}/"
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def joint_state(states: list[FederatedState]) -> FederatedState:
    """The clusters' states as one, in order."""
    return {f"cluster/{number}/{name}": value for number, own in enumerate(states) for name, value in own.items()}


def _init(method: RoundMethod, clusters: list[Federation], hp: FederatedSettings, _: Federation) -> FederatedState:
    return joint_state([method.init(hp, cluster) for cluster in clusters])


def _plan(
    method: RoundMethod, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation,
    round: int,
) -> list[LocalTraining]:  # fmt: skip
    plans = [method.plan(hp, cluster_state(state, number), cluster, round) for number, cluster in enumerate(clusters)]
    return [request for plan in plans for request in plan]


def _fold(
    method: RoundMethod, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation,
    round: int, requests: list[LocalTraining], trained: list[Trained],
) -> tuple[FederatedState, State]:  # fmt: skip
    """Folds each cluster; the log entries are those of :func:`on_clock`."""
    rows: list[State] = []
    folded, participants = [], []
    for number, cluster in enumerate(clusters):
        own = cluster_state(state, number)
        row: State = {}
        cluster_requests, cluster_results = cluster_work(cluster, requests, trained)
        if cluster_requests or (method.is_finished and not method.is_finished(hp, own, cluster, round)):
            own, row = method.fold(hp, own, cluster, round, cluster_requests, cluster_results)
        folded.append(own)
        rows.append(row)
        participants.append(len({result.client for result in cluster_results}))
    sums = {name: sum(row.get(name, 0) for row in rows) for name in BYTES}
    return joint_state(folded), sums | on_clock(rows, participants)


def on_clock(rows: list[State], participants: list[int]) -> State:
    """Return a fleet's log entries from those of each cluster, which has its own clock; the latest counts.

    Args:
        rows: The log entries of each cluster; without a fleet they have no ``clock``.
        participants: The number of clients of each cluster that took part.
    """
    if not all("clock" in row for row in rows):
        return {}
    entries: State = {key: sum(row[key] for row in rows) for key in ("dropped", "late", "partial")}
    staleness = _mean([row["staleness"] for row in rows], participants)
    return {"clock": max(row["clock"] for row in rows), **entries, "staleness": staleness}


def _is_finished(
    method: RoundMethod, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation,
    round: int,
) -> bool:  # fmt: skip
    parts = enumerate(clusters)
    return all(method.is_finished(hp, cluster_state(state, number), cluster, round) for number, cluster in parts)


def cluster_work(
    cluster: Federation, requests: list[LocalTraining], trained: list[Trained]
) -> tuple[list[LocalTraining], list[Trained]]:
    """Returns the cluster's part of a round: its requests and their results, in order."""
    members = set(cluster.numbers)
    cluster_requests = [request for request in requests if request.client in members]
    return cluster_requests, [result for result in trained if result.client in members]


def _deployed(
    method: RoundMethod, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation,
    client: int,
) -> ClientModel:  # fmt: skip
    number = next(number for number, cluster in enumerate(clusters) if client in cluster.numbers)
    return method.deployed(hp, cluster_state(state, number), clusters[number], client)


def _exchange(
    method: RoundMethod, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation,
    round: int, requests: list[LocalTraining], trained: list[Trained], engine: Engine,
) -> tuple[FederatedState, State, FurtherWork]:  # fmt: skip
    """Runs the exchange of each cluster; the log entries are those of :func:`_distilled`."""
    states = []
    rows: list[State] = []
    joint = FurtherWork()
    for number, cluster in enumerate(clusters):
        own = cluster_state(state, number)
        work = cluster_work(cluster, requests, trained)
        row: State = {}
        if work[0]:
            own, row, further = method.exchange(hp, own, cluster, round, *work, engine)
            joint.inferences.extend(further.inferences)
            joint.distillation.extend(further.distillation)
            joint.distilled.extend(further.distilled)
        states.append(own)
        rows.append(row)
    sums = {name: sum(row.get(name, 0) for row in rows) for name in BYTES}
    return joint_state(states), sums | _distilled([row for row in rows if "distill_steps" in row]), joint


def _distilled(rows: list[State]) -> State:
    """Return the log entries of the distilling servers: losses averaged over steps, accuracies over test examples; {}
    if none distills."""
    if not rows:
        return {}
    steps = [row["distill_steps"] for row in rows]
    entries: State = {"distill_loss": _mean([row["distill_loss"] for row in rows], steps)}
    entries["distill_steps"] = sum(steps)
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
    """Return the weighted mean of ``values``; those of weight 0 may be None. None without any weight."""
    if not sum(weights):
        return None
    known = [value if weight else 0.0 for value, weight in zip(values, weights, strict=True)]
    return float(np.average(known, weights=weights))
