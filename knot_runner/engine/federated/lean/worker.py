"""A worker process of the lean engine, which executes requests for local training and inference.

Requests arrive through a pipe. Examples, weights and results are in shared memory.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from knot_runner.config.plugins import load_plugins
from knot_runner.engine.examples import ClientData, stored_data
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import (
    ROWS_OF_MANY,
    ClientModel,
    Inference,
    LocalProgram,
    LocalTraining,
    Trained,
)
from knot_runner.engine.federated.lean.client import TrainingClient, make_client
from knot_runner.engine.federated.local import EngineRequest
from knot_runner.models.network import Network
from knot_runner.util.shared_memory import Memory, aligned
from knot_runner.util.workers import Handler, Send, SharedArrays

#: A worker's reply: the result of training without its vectors, or the features of an inference, with numpy arrays
#: instead of tensors. For logits, which are in shared memory, the reply is None.
Reply = Trained | np.ndarray | None
_Value = TypeVar("_Value")


class SharedData:
    """Several data sets in one block of shared memory. Any process can read the data through :meth:`views`."""

    def __init__(self, *data: ClientData) -> None:
        self._names: list[list[str]] = []
        arrays: list[np.ndarray] = []
        for part in data:
            tensors = part.tensors()
            self._names.append(list(tensors))
            arrays.extend(map(Tensor.numpy, tensors.values()))
        self._arrays = SharedArrays(arrays)
        self.memory = self._arrays.memory

    def views(self) -> list[ClientData]:
        """Return one view per data set, in the order of the constructor's arguments."""
        tensors = map(torch.from_numpy, self._arrays.arrays())
        views = []
        for names in self._names:
            views.append(stored_data({name: next(tensors) for name in names}))
        return views


@dataclass(frozen=True)
class Slots:
    """Slots of shared memory for the tensors of requests and results. One request uses one slot.

    A slot has three vectors:

    - the initial model: P weights, then Q buffer values
    - the control variate: P values
    - the result: a model or logits

    Attributes:
        memory: The shared memory.
        sizes: The pair (P, Q) of every network.
        dtype: The dtype of the vectors.
        length: Number of values in a vector.
    """

    memory: Memory
    sizes: tuple[tuple[int, int], ...]
    dtype: torch.dtype
    length: int

    @classmethod
    def make(cls, count: int, networks: Sequence[Network], dtype: torch.dtype) -> Slots:
        """Allocate ``count`` slots for requests that use ``networks``.

        Each vector of a slot can hold a model of any network, or the logits of the largest inference request
        (``ROWS_OF_MANY`` examples).
        """
        sizes = tuple((layout.size, layout.buffer_size) for layout in map(flat.layout_of, networks))
        size = aligned(max(ROWS_OF_MANY * networks[0].classes, *map(sum, sizes)) * dtype.itemsize)
        return cls(Memory(3 * count * size), sizes, dtype, size // dtype.itemsize)

    def fill(self, slot: int, request: EngineRequest) -> None:
        """Copy the model of ``request`` into ``slot``, and also the control variate if the request has one."""
        (weights, buffers), (control, _), _ = self.vectors(slot, request.network)
        if isinstance(request, Inference):
            model = request.model
        else:
            model = request.start
            if request.control is not None:
                control.copy_(request.control)
        weights.copy_(model.weights)
        buffers.copy_(model.buffers)

    def vectors(self, slot: int, network: int) -> list[tuple[Tensor, Tensor]]:
        """Return views of the three vectors of ``slot``: initial model, control variate and result.

        Each vector is returned as a pair: its first P values and its next Q values. For a model, the pair is (weights,
        buffers). For the control variate, ignore the second part. ``network``: the index of the request's network.
        """
        parameters, buffers = self.sizes[network]
        return [(vector[:parameters], vector[parameters : parameters + buffers]) for vector in self._all()[slot]]

    def logits(self, slot: int, rows: int, classes: int) -> Tensor:
        """Return a view of the result in ``slot`` as logits, shape [rows, classes]."""
        return self._all()[slot, 2, : rows * classes].view(rows, classes)

    def _all(self) -> Tensor:
        return torch.frombuffer(self.memory.map, dtype=self.dtype).view(-1, 3, self.length)


@dataclass(frozen=True)
class Order:
    """A packed request (:func:`packed`), and the index of the slot that holds the request's model.

    ``has_control``: whether the slot also holds a control variate.
    """

    request: EngineRequest
    slot: int
    has_control: bool


def packed(request: EngineRequest) -> EngineRequest:
    """Return ``request`` in a form that can be sent through a pipe.

    The model and the control variate are omitted, and all other tensors become numpy arrays.
    """
    # Tensors are not pickled, because a pickled view would include the whole memory that it refers to.
    vectors: dict[str, Any] = {"start": None, "control": None}
    if isinstance(request, Inference):
        vectors = {"model": None}
    return as_arrays(replace(request, **vectors))


def unpacked(request: EngineRequest, model: ClientModel, control: Tensor | None) -> EngineRequest:
    """Undo :func:`packed`: return a request with tensors instead of arrays, and with ``model`` and ``control``."""
    request = as_tensors(request)
    if isinstance(request, Inference):
        return replace(request, model=model)
    return replace(request, start=model, control=control)


def as_arrays(value: _Value) -> _Value:
    """Return the request or result ``value`` with numpy arrays instead of tensors."""
    converted: _Value = _converted(value, Tensor, lambda tensor: tensor.numpy())
    return converted


def as_tensors(value: _Value) -> _Value:
    """Return the request or result ``value`` with tensors instead of numpy arrays, without copying the arrays."""
    converted: _Value = _converted(value, np.ndarray, torch.from_numpy)
    return converted


def _converted(value: Any, kind: type, convert: Callable[..., object]) -> Any:
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, dict):
        return {name: _converted(each, kind, convert) for name, each in value.items()}
    if isinstance(value, LocalTraining | Inference | LocalProgram | ClientModel | Trained):
        return replace(value, **_converted(vars(value), kind, convert))
    return value


def prepare_client(
    _: Send, slots: Slots, data: SharedData, networks: Sequence[Network], threads: int, plugins: Sequence[str]
) -> Handler:
    """Prepare the current process to train clients, and return the function that executes an :class:`Order`."""
    torch.set_num_threads(threads)
    load_plugins(list(plugins))
    _keep_freed_memory()
    views = data.views()
    clients = [make_client(network, *views, slots.dtype) for network in networks]
    return functools.partial(_execute, clients, slots)


def _execute(clients: list[TrainingClient], slots: Slots, order: Order) -> Reply:
    network = order.request.network
    slot = order.slot
    start, (control, _), results = slots.vectors(slot, network)
    request = unpacked(order.request, ClientModel(*start), control if order.has_control else None)
    client = clients[network]
    if isinstance(request, Inference):
        logits = client.infer(request)
        if request.output == "features":
            return as_arrays(logits)
        slots.logits(slot, *logits.shape).copy_(logits)
        return None
    trained = client.train_client(request, results[0])
    for target, value in zip(results, (trained.weights, trained.buffers), strict=True):
        if value.data_ptr() != target.data_ptr():
            target.copy_(value)
    return as_arrays(replace(trained, weights=None, buffers=None))


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory for reuse. Returning it to the system would take a tenth of the time of a step."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(option, 1 << 30)
