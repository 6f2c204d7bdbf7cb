"""The lean engine's pool of worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from knot_runner.engine.federated.cohort import Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean.client import MakeClient
from knot_runner.engine.federated.lean.worker import Measures, Order, SharedData, Slots, packed, prepare_client
from knot_runner.engine.federated.local import EngineRequest, Result
from knot_runner.models.network import Network
from knot_runner.util.workers import AHEAD, TaskPool

#: Slow imports of a worker.
_PRELOADED = ["knot_runner.engine.federated.lean.worker"]
#: Rows of the largest order that is sent in advance: it must fit into a pipe, or sending would wait for the worker.
_FEW_ROWS = 4096


class LeanPool:
    """``workers`` processes with ``threads`` torch threads each, started at once and kept until :meth:`close`; every
    process trains any of ``networks``."""

    def __init__(
        self, networks: Sequence[Network], data: SharedData, dtype: torch.dtype, workers: int, threads: int,
        plugins: Sequence[str], make_client: MakeClient,
    ) -> None:  # fmt: skip
        self._classes = networks[0].classes
        count = AHEAD * workers + 1  # the orders in flight, and the one whose result is read
        self._slots = Slots.make(count, networks, dtype)
        self._free = list(range(count))
        arguments = self._slots, data, networks, threads, plugins, make_client
        self._pool = TaskPool(workers, _PRELOADED, prepare_client, *arguments)

    def run(self, requests: list[EngineRequest]) -> list[Result]:
        """Execute ``requests``, started in order; results in the same order.

        Raises :class:`UserError` when a worker died at one of them, and the error of a worker.
        """
        results: dict[int, Result] = {}
        slots: list[int] = []
        ahead_of = len(requests) if all(map(_is_small, requests)) else 0
        for index, error, measures in self._pool.run(self._orders(requests, slots), ahead_of):
            if error is not None:
                raise error
            results[index] = self._result(requests[index], slots[index], measures)
            self._free.append(slots[index])
        return [results[index] for index in range(len(requests))]

    def close(self) -> None:
        """Kill the workers. May be called again."""
        self._pool.close()
        self._slots.memory.close()

    def _orders(self, requests: list[EngineRequest], slots: list[int]) -> Iterator[Order]:
        """Yields the order of each request, whose slot is appended to ``slots``."""
        for request in requests:
            slot = self._free.pop()
            slots.append(slot)
            self._slots.fill(slot, request)
            yield Order(packed(request), slot, getattr(request, "control", None) is not None)

    def _result(self, request: EngineRequest, slot: int, measures: Measures) -> Result:
        if isinstance(measures, np.ndarray):
            return torch.from_numpy(measures)
        if isinstance(request, Inference):
            return self._slots.logits(slot, len(request.rows), self._classes).clone()
        weights, buffers = self._slots.result(slot, request.network)
        assert measures is not None
        steps, loss, before, after, finite, kept = measures
        tensors = {name: torch.from_numpy(array) for name, array in kept.items()}
        return Trained(request.client, weights.clone(), buffers.clone(), steps, loss, before, after, finite, tensors)


def _is_small(request: EngineRequest) -> bool:
    """Whether the request, without its model, fits into a pipe, and so does its result."""
    if isinstance(request, LocalTraining) and (request.program is not None or request.inputs or request.models):
        return False
    if isinstance(request, Inference) and request.output == "features":
        return False
    return len(request.rows) <= _FEW_ROWS
