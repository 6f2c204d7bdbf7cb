"""Several clusters of clients as one method: each has its own model and is independent of the others."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from knot_runner.config.settings import FederatedSettings
from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalTraining, Trained
from knot_runner.methods.contract import Exchange, Method, RoundWork, Traffic
from knot_runner.methods.federated.costs import WHOLE_MODELS
from knot_runner.methods.federation import FederatedState, Federation, Folded, RoundRow


def per_cluster(method: Method, clusters: list[Federation]) -> Method:
    """``method`` on each of ``clusters`` (disjoint), all in one state, so that a round trains one cohort of all.

    State: ``cluster/<number>/<name>`` is ``<name>`` of that cluster's state. What a cluster learns depends on its
    members alone.
    """
    bound = functools.partial
    exchange = None
    if method.exchange is not None:
        exchange = Exchange(
            bound(_plan_inference, method.exchange, clusters),
            bound(_plan_training, method.exchange, clusters),
            bound(_fold_exchange, method.exchange, clusters),
            method.exchange.answered_by,
        )
    traffic = method.traffic or WHOLE_MODELS
    return Method(
        bound(_init, method, clusters),
        bound(_plan, method, clusters),
        bound(_fold, method, clusters),
        method.deployed and bound(_deployed, method.deployed, clusters),
        one_model=False,
        exchange=exchange,
        is_finished=method.is_finished and bound(_is_finished, method.is_finished, clusters),
        traffic=Traffic(traffic.sent, bound(_traffic, traffic, clusters)),
    )


def cluster_state(state: FederatedState, number: int) -> FederatedState:
    """The state of cluster ``number`` by itself."""
    prefix = f"cluster/{number}/"
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def joint_state(states: list[FederatedState]) -> FederatedState:
    """The clusters' states as one, in order."""
    return {f"cluster/{number}/{name}": value for number, own in enumerate(states) for name, value in own.items()}


def _init(method: Method, clusters: list[Federation], hp: FederatedSettings, _: Federation) -> FederatedState:
    return joint_state([method.init(hp, cluster) for cluster in clusters])


def _plan(
    method: Method, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation, round: int
) -> list[LocalTraining]:
    plans = [method.plan(hp, cluster_state(state, number), cluster, round) for number, cluster in enumerate(clusters)]
    return [request for number, plan in enumerate(plans) for request in _tagged(number, plan)]


def _tagged(number: int, requests: list[Any]) -> list[Any]:
    """``requests`` as those of cluster ``number``."""
    return [dataclasses.replace(request, cluster=number) for request in requests]


def _untagged(number: int, requests: list[Any]) -> list[Any]:
    """Those of ``requests`` that are of cluster ``number``."""
    return [request for request in requests if request.cluster == number]


def _traffic(
    traffic: Traffic, clusters: list[Federation], hp: FederatedSettings, _: Federation, work: RoundWork
) -> tuple[int, int]:
    """Return the bytes that all clients of all clusters receive and send in a round."""
    down = up = 0
    for number, cluster in enumerate(clusters):
        own = RoundWork(
            _untagged(number, work.requests),
            _untagged(number, work.inferences),
            _untagged(number, work.distillation),
            work.classes,
        )
        received, sent = traffic.count(hp, cluster, own)
        down += received
        up += sent
    return down, up


def _fold(
    method: Method, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, _: Federation,
    round: int, requests: list[LocalTraining], trained: list[Trained],
) -> Folded:  # fmt: skip
    """Folds each cluster; the log entries are those of :func:`on_clock`."""
    folded, rows, participants = [], [], []
    for number, cluster in enumerate(clusters):
        own = cluster_state(state, number)
        row: RoundRow = {}
        cluster_requests, cluster_results = cluster_work(cluster, requests, trained)
        if cluster_requests or (method.is_finished and not method.is_finished(hp, own, cluster, round)):
            own, row = method.fold(hp, own, cluster, round, cluster_requests, cluster_results)
        folded.append(own)
        rows.append(row)
        participants.append(len({result.client for result in cluster_results}))
    return joint_state(folded), on_clock(rows, participants)


def on_clock(rows: list[dict[str, Any]], participants: list[int]) -> dict[str, Any]:
    """Return a fleet's log entries from those of each cluster, which has its own clock; the latest counts.

    Args:
        rows: The log entries of each cluster; without a fleet they have no ``clock``.
        participants: The number of clients of each cluster that took part.
    """
    if not all("clock" in row for row in rows):
        return {}
    entries: dict[str, Any] = {key: sum(row[key] for row in rows) for key in ("dropped", "late", "partial")}
    staleness = _mean([row["staleness"] for row in rows], participants)
    return {"clock": max(row["clock"] for row in rows), **entries, "staleness": staleness}


def _is_finished(
    is_finished: Callable[..., bool], clusters: list[Federation], hp: FederatedSettings, state: FederatedState,
    _: Federation, round: int,
) -> bool:  # fmt: skip
    parts = enumerate(clusters)
    return all(is_finished(hp, cluster_state(state, number), cluster, round) for number, cluster in parts)


def cluster_work(
    cluster: Federation, requests: list[LocalTraining], trained: list[Trained]
) -> tuple[list[LocalTraining], list[Trained]]:
    """Returns the cluster's part of a round: its requests and their results, in order."""
    members = set(cluster.numbers)
    cluster_requests = [request for request in requests if request.client in members]
    return cluster_requests, [result for result in trained if result.client in members]


def _deployed(
    deployed: Callable[..., ClientModel], clusters: list[Federation], hp: FederatedSettings, state: FederatedState,
    _: Federation, client: int,
) -> ClientModel:  # fmt: skip
    number = next(number for number, cluster in enumerate(clusters) if client in cluster.numbers)
    return deployed(hp, cluster_state(state, number), clusters[number], client)


@dataclass(frozen=True)
class _ClusterRound:
    """A cluster's part of a round: its state after the fold, and its clients' results."""

    number: int
    cluster: Federation
    state: FederatedState
    trained: list[Trained]
    inferences: list[Inference]


def _parts(
    exchange: Exchange, clusters: list[Federation], hp: FederatedSettings, state: FederatedState, round: int,
    trained: list[Trained],
) -> Iterator[_ClusterRound]:  # fmt: skip
    for number, cluster in enumerate(clusters):
        own, members = cluster_state(state, number), set(cluster.numbers)
        own_results = [result for result in trained if result.client in members]
        inferences = exchange.plan_inference(hp, own, cluster, round, own_results) if own_results else None
        yield _ClusterRound(number, cluster, own, own_results, inferences or [])


def _plan_inference(
    exchange: Exchange, clusters: list[Federation], hp: FederatedSettings,
    state: FederatedState, _: Federation, round: int,
    trained: list[Trained],
) -> list[Inference]:  # fmt: skip
    parts = _parts(exchange, clusters, hp, state, round, trained)
    return [one for part in parts for one in _tagged(part.number, part.inferences)]


def _plan_training(
    exchange: Exchange, clusters: list[Federation], hp: FederatedSettings,
    state: FederatedState, _: Federation, round: int,
    trained: list[Trained], logits: list[Tensor],
) -> list[LocalTraining]:  # fmt: skip
    outputs, requests = iter(logits), []
    for part in _parts(exchange, clusters, hp, state, round, trained):
        own = [next(outputs) for _ in part.inferences]
        planned = exchange.plan_training(hp, part.state, part.cluster, round, part.trained, own) if own else []
        requests += _tagged(part.number, planned)
    return requests


def _fold_exchange(
    exchange: Exchange, clusters: list[Federation], hp: FederatedSettings,
    state: FederatedState, _: Federation, round: int,
    trained: list[Trained], logits: list[Tensor], distilled: list[Trained],
) -> Folded:  # fmt: skip
    """Folds the exchange of each cluster; the log entries are those of :func:`_distilled`."""
    outputs, results, states, rows = iter(logits), iter(distilled), [], []
    for part in _parts(exchange, clusters, hp, state, round, trained):
        own, after = [next(outputs) for _ in part.inferences], part.state
        row: RoundRow = {}
        if own:
            trainings = exchange.plan_training(hp, part.state, part.cluster, round, part.trained, own)
            distilled_results = [next(results) for _ in trainings]
            after, row = exchange.fold(hp, part.state, part.cluster, round, part.trained, own, distilled_results)
        states.append(after)
        rows.append(row)
    return joint_state(states), _distilled([row for row in rows if "distill_steps" in row])


def _distilled(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the log entries of the distilling servers: losses averaged over steps, accuracies over test examples; {}
    if none distills."""
    if not rows:
        return {}
    steps = [row["distill_steps"] for row in rows]
    entries: dict[str, Any] = {"distill_loss": _mean([row["distill_loss"] for row in rows], steps)}
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
