"""A worker process of the lean engine: orders through a pipe, weights and results through shared memory."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import load_plugins
from knot_runner.engine.federated.cohort import ClientModel, Inference
from knot_runner.engine.federated.dealing import EngineRequest
from knot_runner.engine.federated.lean.client import MakeClient, TrainingClient
from knot_runner.engine.federated.lean.memory import SharedData, Slots
from knot_runner.models.network import Network
from knot_runner.util.workers import Handler, Send

#: (steps, loss, before, after, finite, kept as arrays) of :class:`Trained`; None of an inference
Measures = tuple[int, float, int, int, bool, dict[str, np.ndarray]] | None


@dataclass(frozen=True)
class Order:
    """A request as it is sent: weights and buffers in slot ``model``, the control variate in slot ``control``, rows as
    arrays. ``result``: the slot for the trained vectors, or for the logits."""

    request: EngineRequest
    model: int
    control: int | None
    result: int


def pack(request: EngineRequest, model: int, control: int | None, result: int) -> Order:
    """The order for ``request``, whose vectors are in the slots."""
    return Order(packed(request), model, control, result)


def packed(request: EngineRequest) -> EngineRequest:
    """The request without its vectors (the model's, control), with arrays in the place of other tensors: a tensor would
    be pickled with all of the memory that it is a view of."""
    if isinstance(request, Inference):
        sent: dict[str, Any] = {"model": None}
    else:
        inputs = {name: tensor.numpy() for name, tensor in request.inputs.items()}
        sent = {"start": None, "test_rows": request.test_rows.numpy(), "control": None, "inputs": inputs}
        if request.program is not None:
            tensors = {name: tensor.numpy() for name, tensor in request.program.tensors.items()}
            sent["program"] = replace(request.program, tensors=tensors)
    return replace(request, **sent, rows=request.rows.numpy())


def unpack(order: Order, slots: Slots) -> EngineRequest:
    """The request of an order, with its vectors in shared memory."""
    network = order.request.network
    control = None if order.control is None else slots.model(order.control, network)[0]
    return unpacked(order.request, ClientModel(*slots.model(order.model, network)), control)


def unpacked(request: EngineRequest, model: ClientModel, control: Tensor | None) -> EngineRequest:
    """The request that was :func:`packed`, with these vectors."""
    rows = torch.from_numpy(request.rows)
    if isinstance(request, Inference):
        return replace(request, model=model, rows=rows)
    tests = torch.from_numpy(request.test_rows)
    inputs = {name: torch.from_numpy(array) for name, array in request.inputs.items()}
    program = request.program
    if program is not None:
        tensors = {name: torch.from_numpy(array) for name, array in program.tensors.items()}
        program = replace(program, tensors=tensors)
    own = {"rows": rows, "test_rows": tests, "inputs": inputs}
    return replace(request, start=model, control=control, program=program, **own)


def prepare_client(
    _: Send,
    slots: Slots,
    data: SharedData,
    networks: Sequence[Network],
    threads: int,
    plugins: Sequence[str],
    make_client: MakeClient,
) -> Handler:
    """In the worker: threads, memory, data, plug-ins, and the function that executes an order."""
    torch.set_num_threads(threads)
    load_plugins(list(plugins))
    _keep_freed_memory()
    views = data.views()
    clients = [make_client(network, *views, slots.dtype) for network in networks]
    return functools.partial(_execute, clients, slots)


def _execute(clients: list[TrainingClient], slots: Slots, order: Order) -> Measures:
    request = unpack(order, slots)
    client = clients[request.network]
    if isinstance(request, Inference):
        logits = client.infer(request)
        slots.logits(order.result, *logits.shape).copy_(logits)
        return None
    results = slots.model(order.result, request.network)
    trained = client.train_client(request, results[0])
    for slot, value in zip(results, (trained.weights, trained.buffers), strict=True):
        if value.data_ptr() != slot.data_ptr():
            slot.copy_(value)
    kept = {name: tensor.numpy() for name, tensor in trained.kept.items()}
    return trained.steps, trained.loss, trained.before, trained.after, trained.finite, kept


def _keep_freed_memory() -> None:
    """Make glibc reuse freed memory: returning megabytes to the system at every step costs a tenth of the time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                mallopt(option, 1 << 30)
