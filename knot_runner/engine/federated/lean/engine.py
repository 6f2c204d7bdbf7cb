"""The CPU engine: worker processes train one client at a time, with a manual backward pass and in-place updates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated.cohort import Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean.client import MakeClient, make_client
from knot_runner.engine.federated.local import EngineRequest, Result, infer_in_pieces, train_longest_first
from knot_runner.models.network import Network
from knot_runner.util.processes import cores


class Lean:
    """``workers`` processes (0 = one per core) with ``threads`` torch threads each; with 1, this one with its own.

    One client at a time stays in a core's cache, and processes do not wait for one another as threads of one operation
    do. Results are the same, bit for bit, for any number of workers.

    An exception ends the engine. ``plugins``: imported by workers, since one may define the objective. ``others``:
    further networks, numbered from 1 in requests; every worker trains them all. ``make_client``: makes what trains
    clients of a network, in every worker.
    """

    name = "lean"
    device = torch.device("cpu")

    def __init__(
        self, network: Network, data: ClientData, test: ClientData, dtype: torch.dtype, workers: int, threads: int,
        plugins: Sequence[str] = (), others: Sequence[Network] = (), make_client: MakeClient = make_client,
    ) -> None:  # fmt: skip
        workers = workers or cores()
        networks = [network, *others]
        self._pool = self._data = None
        if workers == 1:
            self._clients = [make_client(one, data, test, dtype) for one in networks]
        else:
            from knot_runner.engine.federated.lean.pool import LeanPool
            from knot_runner.engine.federated.lean.worker import SharedData

            self._data = SharedData(data, test)
            self._pool = LeanPool(networks, self._data, dtype, workers, threads, plugins, make_client)

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`."""
        return train_longest_first(self._run, cohort)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`."""
        return infer_in_pieces(self._run, requests)

    def close(self) -> None:
        """See :class:`Engine`."""
        if self._pool is not None:
            self._pool.close()
            self._data.memory.close()

    def _run(self, requests: list[EngineRequest]) -> list[Result]:
        if self._pool is None:
            return [self._result(request) for request in requests]
        try:
            return self._pool.run(requests)
        except BaseException:  # Ctrl-C, a dead worker, a worker's exception: results in flight are not needed
            self.close()
            raise

    def _result(self, request: EngineRequest) -> Result:
        """In this process."""
        client = self._clients[request.network]
        return client.infer(request) if isinstance(request, Inference) else client.train_client(request)
