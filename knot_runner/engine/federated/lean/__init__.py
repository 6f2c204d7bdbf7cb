"""The CPU engine: worker processes train one client at a time, with a manual backward pass and in-place updates.

Read ``client.py`` next. ``network.py``: one training step with SGD, the loss and its gradient; ``stems.py``,
``dense.py``: the layers' forward and backward passes.
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
    """An engine that trains clients in ``workers`` processes with ``threads`` torch threads each.

    With one worker, training runs in this process with ``threads`` threads. A process trains one client at a time, so
    that the client's model fits into the cache of a core. Processes do not wait for each other, in contrast to threads
    that share one operation. Results are bitwise equal for any number of workers. After an exception, the engine cannot
    be used again.

    ``networks``: the networks, to which requests refer by index. ``plugins``: modules that each worker imports, because
    these modules may define the objective.
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
        self._pool = TaskPool(workers, _PRELOADED, prepare_client, *arguments)

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """Implement :meth:`Engine.train`. The longest training runs start first.

        Short training runs then end last, so workers are idle for less time.
        """
        longest = sorted(range(len(cohort)), key=lambda i: -steps(cohort[i].recipe, len(cohort[i].rows)))
        results = self._run([cohort[i] for i in longest])
        return ordered(dict(zip(longest, results, strict=True)))

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """Implement :meth:`Engine.logits`, computed in chunks of examples.

        A chunk has INFERENCE_ROWS examples, or ROWS_OF_MANY examples if ``many`` of the request is true. Only the last
        chunk of a request may be smaller. The size does not depend on the number of workers.
        """
        parts = [request.rows.split(ROWS_OF_MANY if request.many else INFERENCE_ROWS) for request in requests]
        pieces = [replace(request, rows=part) for request, rows in zip(requests, parts, strict=True) for part in rows]
        outputs = iter(self._run(pieces))
        return [torch.cat([next(outputs) for _ in rows]) for rows in parts]

    def close(self) -> None:
        """Implement :meth:`Engine.close`."""
        if self._pool is not None:
            self._pool.close()
            self._slots.memory.close()
            self._data.memory.close()

    def _run(self, requests: list[Any]) -> list[Any]:
        """Start ``requests`` in order, wait for all of them, and return their results in the same order.

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
        """Yield each request as an :class:`Order` for a worker; append the number of the used slot to ``slots``."""
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
