"""The lean engine for CPUs: each worker process trains one client at a time, with hand-written backward passes.

Read ``client.py`` next:

- ``client.py``: local training and inference in one process
- ``network.py``: one training step with SGD, the loss and its gradient
- ``stems.py``, ``dense.py``: forward and backward passes of the layers
- ``worker.py``: the worker processes and their shared memory
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, ROWS_OF_MANY, Inference, LocalTraining, Trained, ordered
from knot_runner.engine.federated.lean.client import make_client
from knot_runner.engine.federated.lean.worker import Order, Reply, SharedData, Slots, as_tensors, packed, prepare_client
from knot_runner.engine.federated.local import EngineRequest, Result, steps
from knot_runner.models.network import Network
from knot_runner.util.workers import AHEAD, TaskPool

#: Modules that are slow to import and that every worker needs.
_PRELOADED = ["knot_runner.engine.federated.lean.worker"]
#: An order with at most this number of rows is sent before the worker is idle. A larger order may not fit into the
#: pipe, so that sending would block until the worker reads it.
_FEW_ROWS = 4096


class Lean:
    """An engine that trains clients in worker processes on CPUs.

    Each worker process trains one client at a time. Results are bitwise equal for any number of worker processes. After
    an exception, the engine cannot be used again.

    Args:
        networks: The networks to train. Requests refer to a network by its index in this sequence.
        data: The training examples of all clients.
        test: The test examples of all clients.
        dtype: The dtype of weights and gradients.
        workers: Number of worker processes. With one worker, training runs in the current process.
        threads: Number of torch threads of each worker process.
        plugins: Plug-in modules that each worker process imports.
    """

    name = "lean"
    device = torch.device("cpu")

    def __init__(
        self, networks: Sequence[Network], data: ClientData, test: ClientData, dtype: torch.dtype, workers: int,
        threads: int, plugins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._classes = networks[0].classes
        self._pool = None
        if workers == 1:
            self._clients = [make_client(network, data, test, dtype) for network in networks]
            return
        count = AHEAD * workers + 1  # orders that were sent, and one whose result is being read
        self._data = SharedData(data, test)
        self._slots = Slots.make(count, networks, dtype)
        self._free = list(range(count))
        arguments = self._slots, self._data, networks, threads, plugins
        # A process trains one client at a time, so that the client's model fits into the cache of a core.
        # Processes do not wait for each other, in contrast to threads that share one operation.
        self._pool = TaskPool(workers, _PRELOADED, prepare_client, *arguments)

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Train every client of ``cohort``; return the results in the same order (:meth:`Engine.train`)."""
        # The longest training runs start first. Short runs then end last, so workers are idle for less time.
        longest = sorted(range(len(cohort)), key=lambda i: -steps(cohort[i].recipe, len(cohort[i].rows)))
        return ordered(dict(zip(longest, self._run([cohort[i] for i in longest]), strict=True)))

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Return the logits or features of every request, in order (:meth:`Engine.logits`)."""
        parts = [request.rows.split(ROWS_OF_MANY if request.many else INFERENCE_ROWS) for request in requests]
        pieces = [replace(request, rows=part) for request, rows in zip(requests, parts, strict=True) for part in rows]
        outputs = iter(self._run(pieces))
        return [torch.cat([next(outputs) for _ in rows]) for rows in parts]

    def close(self) -> None:
        """End the worker processes and free the shared memory (:meth:`Engine.close`)."""
        if self._pool is not None:
            self._pool.close()
            self._slots.memory.close()
            self._data.memory.close()

    def _run(self, requests: list[Any]) -> list[Any]:
        """Execute ``requests``, which start in the given order, and return their results in this order.

        Raises:
            UserError: A worker died while executing a request, or raised this error.
        """
        if self._pool is None:
            return list(map(self._result, requests))
        results: dict[int, Result] = {}
        slots: list[int] = []
        ahead_of = len(requests) if all(map(_is_small, requests)) else 0
        try:
            for index, error, reply in self._pool.run(self._orders(requests, slots), ahead_of):
                if error is not None:
                    raise error
                results[index] = self._received(requests[index], slots[index], reply)
                self._free.append(slots[index])
        except BaseException:  # Ctrl-C, a dead worker, a worker's exception: results in flight are not needed
            self.close()
            raise
        return ordered(results)

    def _result(self, request: EngineRequest) -> Result:
        """Execute the request in this process."""
        client = self._clients[request.network]
        if isinstance(request, Inference):
            return client.infer(request)
        return client.train_client(request)

    def _orders(self, requests: list[EngineRequest], slots: list[int]) -> Iterator[Order]:
        """Yield an :class:`Order` for each request, and append the number of the order's slot to ``slots``."""
        for request in requests:
            slot = self._free.pop()
            slots.append(slot)
            self._slots.fill(slot, request)
            yield Order(packed(request), slot, getattr(request, "control", None) is not None)

    def _received(self, request: EngineRequest, slot: int, reply: Reply) -> Result:
        """Return the result of a request that a worker executed."""
        if reply is None:
            return self._slots.logits(slot, len(request.rows), self._classes).clone()
        result = as_tensors(reply)
        if isinstance(request, Inference):
            return result
        weights, buffers = self._slots.vectors(slot, request.network)[2]
        return replace(result, weights=weights.clone(), buffers=buffers.clone())


def _is_small(request: EngineRequest) -> bool:
    """Return whether the request (without the model) and the result both fit into a pipe."""
    if isinstance(request, LocalTraining) and (request.program is not None or request.inputs or request.models):
        return False
    if isinstance(request, Inference) and request.output == "features":
        return False
    return len(request.rows) <= _FEW_ROWS
