"""Several clusters of clients as one method: each has its own model and is independent of the others."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from knot_runner.engine.federated.cohort import ClientModel, Inference, LocalTraining, Trained
from knot_runner.methods.contract import Exchange, Method, RoundWork
from knot_runner.methods.federation import FederatedState, Federation


def per_cluster(method: Method, clusters: list[Federation]) -> Method:
    """``method`` on each of ``clusters`` (disjoint), all in one state, so that a round trains one cohort of all.

    State: ``cluster/<number>/<name>`` is ``<name>`` of that cluster's state. What a cluster learns depends on its
    members alone.
    """
    bound = functools.partial
    steps = (_plan_inference, _plan_training, _fold_exchange)
    exchange = Exchange(*(bound(step, method.exchange, clusters) for step in steps)) if method.exchange else None
    return Method(
        bound(_init, method, clusters),
        bound(_plan, method, clusters),
        bound(_fold, method, clusters),
        bound(_deployed, method, clusters),
        one_model=False,
        exchange=exchange,
        is_finished=bound(_is_finished, method, clusters) if method.is_finished else None,
    )


def cluster_state(state: FederatedState, number: int) -> FederatedState:
    """The state of cluster ``number`` by itself."""
    prefix = f"cluster/{number}/"
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def joint_state(states: list[FederatedState]) -> FederatedState:
    """The clusters' states as one, in order."""
    return {f"cluster/{number}/{name}": value for number, own in enumerate(states) for name, value in own.items()}


def _init(method: Method, clusters: list[Federation], hp: Any, _: Federation) -> FederatedState:
    return joint_state([method.init(hp, cluster) for cluster in clusters])


def _plan(
    method: Method, clusters: list[Federation], hp: Any, state: FederatedState, _: Federation, round: int
) -> list[LocalTraining]:
    plans = [method.plan(hp, cluster_state(state, number), cluster, round) for number, cluster in enumerate(clusters)]
    return [request for number, plan in enumerate(plans) for request in _tagged(number, plan)]


def _tagged(number: int, requests: list[Any]) -> list[Any]:
    """``requests`` as those of cluster ``number``."""
    return [dataclasses.replace(request, cluster=number) for request in requests]


def work_of_cluster(number: int, work: RoundWork) -> RoundWork:
    """Returns the part of ``work`` for cluster ``number``."""
    parts = work.requests, work.inferences, work.distillation
    return RoundWork(*([one for one in part if one.cluster == number] for part in parts), work.classes)


def _fold(
    method: Method,
    clusters: list[Federation],
    hp: Any,
    state: FederatedState,
    _: Federation,
    round: int,
    requests: list[LocalTraining],
    trained: list[Trained],
) -> tuple[FederatedState, dict[str, Any]]:
    """Folds each cluster; log entry ``folded``: the row of each cluster, where the method returns one."""
    folded, rows = [], []
    for number, cluster in enumerate(clusters):
        own, row = cluster_state(state, number), {}
        cluster_requests, cluster_results = cluster_work(cluster, requests, trained)
        if cluster_requests or (method.is_finished and not method.is_finished(hp, own, cluster, round)):
            own, row = method.fold(hp, own, cluster, round, cluster_requests, cluster_results)
        folded.append(own)
        rows.append(row)
    return joint_state(folded), {"folded": rows} if any(rows) else {}


def _is_finished(
    method: Method, clusters: list[Federation], hp: Any, state: FederatedState, _: Federation, round: int
) -> bool:
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
    method: Method, clusters: list[Federation], hp: Any, state: FederatedState, _: Federation, client: int
) -> ClientModel:
    number = next(number for number, cluster in enumerate(clusters) if client in cluster.numbers)
    return method.deployed(hp, cluster_state(state, number), clusters[number], client)


@dataclass(frozen=True)
class _ClusterRound:
    """A cluster's part of a round: its state after the fold, and its clients' results."""

    number: int
    cluster: Federation
    state: FederatedState
    trained: list[Trained]
    inferences: list[Inference]


def _parts(
    exchange: Exchange, clusters: list[Federation], hp: Any, state: FederatedState, round: int, trained: list[Trained]
) -> Iterator[_ClusterRound]:
    for number, cluster in enumerate(clusters):
        own, members = cluster_state(state, number), set(cluster.numbers)
        own_results = [result for result in trained if result.client in members]
        inferences = exchange.plan_inference(hp, own, cluster, round, own_results) if own_results else None
        yield _ClusterRound(number, cluster, own, own_results, inferences or [])


def _plan_inference(
    exchange: Exchange, clusters: list[Federation], hp: Any, state: FederatedState, _: Federation, round: int,
    trained: list[Trained],
) -> list[Inference]:  # fmt: skip
    parts = _parts(exchange, clusters, hp, state, round, trained)
    return [one for part in parts for one in _tagged(part.number, part.inferences)]


def _plan_training(
    exchange: Exchange, clusters: list[Federation], hp: Any, state: FederatedState, _: Federation, round: int,
    trained: list[Trained], logits: list[Tensor],
) -> list[LocalTraining]:  # fmt: skip
    outputs, requests = iter(logits), []
    for part in _parts(exchange, clusters, hp, state, round, trained):
        own = [next(outputs) for _ in part.inferences]
        planned = exchange.plan_training(hp, part.state, part.cluster, round, part.trained, own) if own else []
        requests += _tagged(part.number, planned)
    return requests


def _fold_exchange(
    exchange: Exchange, clusters: list[Federation], hp: Any, state: FederatedState, _: Federation, round: int,
    trained: list[Trained], logits: list[Tensor], distilled: list[Trained],
) -> tuple[FederatedState, dict[str, Any]]:  # fmt: skip
    """Folds the exchange of each cluster; log entry ``exchanged``: the row of each cluster."""
    outputs, results, states, rows = iter(logits), iter(distilled), [], []
    for part in _parts(exchange, clusters, hp, state, round, trained):
        own, after, row = [next(outputs) for _ in part.inferences], part.state, {}
        if own:
            trainings = exchange.plan_training(hp, part.state, part.cluster, round, part.trained, own)
            distilled_results = [next(results) for _ in trainings]
            after, row = exchange.fold(hp, part.state, part.cluster, round, part.trained, own, distilled_results)
        states.append(after)
        rows.append(row)
    return joint_state(states), {"exchanged": rows}
