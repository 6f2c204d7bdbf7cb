"""Aggregation on the server: the mean of the participants' models, and a step towards it."""

from __future__ import annotations

import torch
from torch import Tensor

from knot_runner.config.settings import AveragingSettings
from knot_runner.engine.federated.cohort import LocalTraining, Trained
from knot_runner.methods.federation import FederatedState

#: Values of each model that are averaged at a time, in float64: they stay in a core's cache and need no fresh pages.
AVERAGED_AT_ONCE = 2**15


def shares(hp: AveragingSettings, requests: list[LocalTraining]) -> Tensor:
    """Weight of each participant, float64 [m], summing to 1: by training images (n_k / n) or uniform."""
    sizes = torch.tensor([len(request.rows) for request in requests], dtype=torch.float64)
    if hp.aggregation == "uniform":
        sizes = torch.ones_like(sizes)
    return sizes / sizes.sum()


def average(weights: Tensor, vectors: list[Tensor]) -> Tensor:
    """sum_k weights_k vectors_k of ``vectors`` [P], in float64 and in the order given, in the vectors' own type."""
    shares, mean = weights.tolist(), torch.empty_like(vectors[0])
    for start in range(0, len(mean), AVERAGED_AT_ONCE):
        block = slice(start, start + AVERAGED_AT_ONCE)
        total = torch.zeros(len(mean[block]), dtype=torch.float64)
        for share, vector in zip(shares, vectors, strict=True):
            total.add_(vector[block].double(), alpha=share)
        mean[block] = total
    return mean


def server_step(
    hp: AveragingSettings, state: FederatedState, requests: list[LocalTraining], trained: list[Trained]
) -> FederatedState:
    """The state with the next global model, a step towards the participants' mean. Running statistics are averaged
    plainly."""
    by = shares(hp, requests)
    if len(state["buffers"]):
        state = {**state, "buffers": average(by, [result.buffers for result in trained])}
    return step_towards(hp, state, average(by, [result.weights for result in trained]))


def step_towards(hp: AveragingSettings, state: FederatedState, mean: Tensor) -> FederatedState:
    """The state with the global model after a step towards ``mean`` [P].

    ``none``: w + lr (mean - w); ``momentum`` (FedAvgM): v = beta1 v + delta, w + lr v; ``adam`` (FedAdam, Reddi et al.
    2021, Algorithm 2): w + lr m / (sqrt(v) + tau), with delta = mean - w.
    """
    state = dict(state)
    server, weights = hp.server, state["weights"]
    if server.optimizer == "none" and server.lr == 1:
        state["weights"] = mean
        return state
    delta = mean.double() - weights.double()
    if server.optimizer == "none":
        move = delta
    elif server.optimizer == "momentum":
        move = state["server/velocity"] = server.beta1 * _moment(state, "server/velocity", delta) + delta
    else:
        first, second = server.beta1, server.beta2
        state["server/first"] = first * _moment(state, "server/first", delta) + (1 - first) * delta
        state["server/second"] = second * _moment(state, "server/second", delta) + (1 - second) * delta.square()
        move = state["server/first"] / (state["server/second"].sqrt() + server.tau)
    state["weights"] = (weights.double() + server.lr * move).to(weights.dtype)
    return state


def _moment(state: FederatedState, name: str, like: Tensor) -> Tensor:
    return state.get(name, torch.zeros_like(like))
