"""How several runs use one engine: pooled (worker processes) or exclusive (one run at a time)."""

from __future__ import annotations

import threading
from typing import Protocol

from torch import Tensor

from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.ray_engine import RayEngine
from knot_runner.util.processes import Ended


class SharedEngine(Protocol):
    """An engine that any number of threads may use at once."""

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Engine`. Raises :class:`Ended` after :meth:`stop`."""
        ...

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Engine`. Raises :class:`Ended` after :meth:`stop`."""
        ...

    def users(self, count: int) -> None:
        """The number of runs that share the engine now."""
        ...

    def stop(self) -> None:
        """Waiting runs get :class:`Ended`, at once."""
        ...

    def close(self) -> None:
        """Free the engine's memory; no run uses it any more."""
        ...


class PooledEngine:
    """An engine of workers for several threads: these take requests in order of arrival."""

    def __init__(self, engine: Lean | RayEngine) -> None:
        self.engine = engine
        self.train, self.logits = engine.train, engine.logits
        self.stop = self.close = engine.close

    def users(self, count: int) -> None:
        """See :class:`SharedEngine`; first come, first served for any number."""


class ExclusiveEngine:
    """An engine that computes in this process, one run at a time: while it holds the lock ``computing``."""

    def __init__(self, engine: Engine, computing: threading.Lock) -> None:
        self._engine, self._computing, self._stopped = engine, computing, False

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`SharedEngine`."""
        with self._computing:
            self._check()
            return self._engine.train(cohort)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`SharedEngine`."""
        with self._computing:
            self._check()
            return self._engine.logits(requests)

    def users(self, count: int) -> None:
        """See :class:`SharedEngine`; each waits for the lock."""

    def stop(self) -> None:
        """See :class:`SharedEngine`; a computation in progress is finished."""
        self._stopped = True

    def close(self) -> None:
        """See :class:`SharedEngine`."""
        with self._computing:
            self._engine.close()

    def _check(self) -> None:
        if self._stopped:
            raise Ended("the engine has ended")
