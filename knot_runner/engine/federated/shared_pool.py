"""How several runs use one engine: dealt out to worker processes, or one run at a time."""

from __future__ import annotations

import threading
from typing import Protocol

from torch import Tensor

from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean import Lean
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
        """So many runs have it in their hands now."""
        ...

    def stop(self) -> None:
        """Whoever waits gets :class:`Ended`; at once."""
        ...

    def close(self) -> None:
        """Free what the engine holds; nobody uses it any more."""
        ...


class PooledEngine:
    """The lean engine, made for several threads: its worker processes take requests as they come."""

    def __init__(self, engine: Lean) -> None:
        self.engine = engine
        self.train, self.logits = engine.train, engine.logits
        self.stop = self.close = engine.close

    def users(self, count: int) -> None:
        """See :class:`SharedEngine`; first come, first served, however many they are."""


class ExclusiveEngine:
    """An engine that computes in this process: for one at a time of all who share ``turn``."""

    def __init__(self, engine: Engine, turn: threading.Lock) -> None:
        self._engine, self._turn, self._stopped = engine, turn, False

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`SharedEngine`."""
        with self._turn:
            self._check()
            return self._engine.train(cohort)

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`SharedEngine`."""
        with self._turn:
            self._check()
            return self._engine.logits(requests)

    def users(self, count: int) -> None:
        """See :class:`SharedEngine`; each waits for its turn, however many they are."""

    def stop(self) -> None:
        """See :class:`SharedEngine`; what computes now goes on to its end."""
        self._stopped = True

    def close(self) -> None:
        """See :class:`SharedEngine`."""
        with self._turn:
            self._engine.close()

    def _check(self) -> None:
        if self._stopped:
            raise Ended("the engine has ended")
