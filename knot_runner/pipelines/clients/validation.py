"""Metrics on the clients' validation examples (``partition.valid``), by which runs are selected."""

from __future__ import annotations

import math

import numpy as np
import torch

from knot_runner import metrics
from knot_runner.engine.federated.cohort import Engine
from knot_runner.methods.contract import Method
from knot_runner.methods.federation import FederatedState
from knot_runner.pipelines.clients.setup import Setup


def measure_valid(
    method: Method, hp: object, state: FederatedState, setup: Setup, engine: Engine
) -> dict[str, float] | None:
    """Returns every metric, and the loss, of the deployed models on the clients' own validation examples, pooled; None
    where nothing is held out. Non-finite values are left out."""
    federation = setup.federation
    with_valid = [client for client in federation.numbers if len(federation.clients[client].valid)]
    if not with_valid:
        return None
    requests = []
    for client in with_valid:
        model, rows = method.deployed(hp, state, federation, client), federation.clients[client].valid
        requests.append(federation.inference(client, model, rows, "train"))
    logits = torch.cat(engine.logits(requests)).double().cpu().numpy()
    labels = setup.data.labels[torch.cat([federation.clients[client].valid for client in with_valid])].cpu().numpy()
    if not np.isfinite(logits).all():
        return {}
    points = setup.task.coordinates
    coordinates = None if points is None else np.asarray(points, dtype=np.float64)
    found = metrics.measured(metrics.TestSet(logits, metrics.softmax(logits), labels, coordinates))
    found["loss"] = metrics.mean_cross_entropy(logits, labels, 1.0)
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}
