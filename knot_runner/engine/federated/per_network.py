"""Clients of several architectures: one engine per network, selected by the request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained


class PerNetwork:
    """``engines``, one of each network, in this process; requests of network k go to the k-th. They compute one after
    another, on one device and the same data. (The lean engine's workers train any network themselves.)"""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.name, self.device = engines[0].name, engines[0].device
        self._engines = engines

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`."""
        return self._by_network(cohort, lambda engine, own: engine.train(own))

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`."""
        return self._by_network(requests, lambda engine, own: engine.logits(own))

    def close(self) -> None:
        """See :class:`Engine`."""
        for engine in self._engines:
            engine.close()

    def _by_network(
        self, requests: list[LocalTraining] | list[Inference], compute: Callable[[Engine, list], list]
    ) -> list[Trained] | list[Tensor]:
        """Runs ``compute`` on each engine's requests; returns the results in the order of all requests."""
        found = [None] * len(requests)
        for number, engine in enumerate(self._engines):
            places = [place for place, request in enumerate(requests) if request.network == number]
            results = compute(engine, [requests[place] for place in places]) if places else []
            for place, result in zip(places, results, strict=True):
                found[place] = result
        return found
