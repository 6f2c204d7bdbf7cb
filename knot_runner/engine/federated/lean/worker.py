"""A worker process of the lean engine: orders through a pipe, data, weights and results in memory that is shared."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import load_plugins
from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ROWS_OF_MANY, ClientModel, Inference
from knot_runner.engine.federated.lean.client import MakeClient, TrainingClient
from knot_runner.engine.federated.local import EngineRequest
from knot_runner.models.network import Network
from knot_runner.util.shared_memory import Memory, aligned
from knot_runner.util.workers import Handler, Send, SharedArrays

#: (steps, loss, before, after, finite, kept as arrays) of :class:`Trained`; None of an inference
Measures = tuple[int, float, int, int, bool, dict[str, np.ndarray]] | None


def memory_view(memory: Memory, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of ``memory`` from byte ``start`` on; it keeps the memory mapped."""
    if not prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory.map, dtype=dtype, count=prod(shape), offset=start).view(shape)


class SharedData:
    """Several :class:`ClientData` copied into one shared memory; :meth:`views` of them in any process."""

    def __init__(self, *data: ClientData) -> None:
        found = [one.tensors() for one in data]
        self._kinds = [(type(one), len(tensors)) for one, tensors in zip(data, found, strict=True)]
        self._arrays = SharedArrays([tensor.numpy() for tensors in found for tensor in tensors])
        self.memory = self._arrays.memory

    def expect(self, rows: Tensor) -> None:
        """The examples at ``rows`` [n] of the first data will be read soon."""
        self._arrays.expect(0, rows.numpy())

    def views(self) -> list[ClientData]:
        """The data on the shared memory, in the order given."""
        tensors = iter([torch.from_numpy(array) for array in self._arrays.arrays()])
        return [kind.of([next(tensors) for _ in range(count)]) for kind, count in self._kinds]


@dataclass(frozen=True)
class Slots:
    """Equal pieces of shared memory, each for a model (weights [P] then buffers [Q]), a vector [P], or logits.

    ``sizes``: (P, Q) of every network.
    """

    memory: Memory
    sizes: tuple[tuple[int, int], ...]
    dtype: torch.dtype
    stride: int

    @classmethod
    def make(cls, count: int, networks: Sequence[Network], dtype: torch.dtype) -> Slots:
        """``count`` slots that hold a model of any of ``networks`` or the logits of ROWS_OF_MANY examples."""
        layouts = [flat.layout_of(network) for network in networks]
        sizes = tuple((layout.size, layout.buffer_size) for layout in layouts)
        values = max(ROWS_OF_MANY * networks[0].classes, *map(sum, sizes))
        stride = aligned(values * dtype.itemsize)
        return cls(Memory(count * stride), sizes, dtype, stride)

    def model(self, slot: int, network: int = 0) -> tuple[Tensor, Tensor]:
        """(weights [P], buffers [Q]) of the network of that number."""
        parameters, buffers = self.sizes[network]
        both = memory_view(self.memory, slot * self.stride, (parameters + buffers,), self.dtype)
        return both[:parameters], both[parameters:]

    def logits(self, slot: int, rows: int, classes: int) -> Tensor:
        """[rows, classes]"""
        return memory_view(self.memory, slot * self.stride, (rows, classes), self.dtype)


class SlotAllocator:
    """Assigns tensors to slots and counts the readers of each: tensors shared by requests of a call are copied once.

    Tensors are identified by call and address: during a call its tensors neither change nor are freed.
    """

    def __init__(self, slots: Slots, numbers: Iterable[int]) -> None:
        self._slots, self._readers = slots, dict.fromkeys(numbers, 0)
        self._held: dict[tuple[object, ...], int] = {}

    def clear(self, call: object = None) -> None:
        """Forget the tensors of ``call``; slots that are still read stay until they are released."""
        self._held = {key: slot for key, slot in self._held.items() if key[0] is not call}

    def acquire(self, vector: Tensor, buffers: Tensor | None = None, call: object = None, network: int = 0) -> int:
        """A slot that holds ``vector`` [P] and ``buffers`` [Q] of the network of that number, to be released by
        :meth:`release`."""
        key = (call, *((t.data_ptr(), t.shape, t.stride()) for t in (vector, buffers) if t is not None))
        slot = self._held.pop(key, None)
        if slot is None:
            slot = self._free()
            for place, value in zip(self._slots.model(slot, network), (vector, buffers), strict=True):
                if value is not None:
                    place.copy_(value)
        self._held[key] = slot  # most recent: overwritten last
        self._readers[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """One reader of ``slot`` is done."""
        self._readers[slot] -= 1

    def _free(self) -> int:
        """The first empty slot; else, of those without readers, the one least recently acquired."""
        held = set(self._held.values())
        empty = [slot for slot, readers in self._readers.items() if not readers and slot not in held]
        if empty:
            return min(empty)
        key, slot = next((key, slot) for key, slot in self._held.items() if not self._readers[slot])
        del self._held[key]
        return slot


@dataclass(frozen=True)
class Order:
    """A request as it is sent: weights and buffers in slot ``model``, the control variate in slot ``control``, rows as
    arrays. ``result``: the slot for the trained vectors, or for the logits."""

    request: EngineRequest
    model: int
    control: int | None
    result: int


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
