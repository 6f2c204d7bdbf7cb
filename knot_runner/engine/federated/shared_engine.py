"""How several runs use one engine: pooled (worker processes), exclusive (one run at a time), or as one stack."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from torch import Tensor

from knot_runner.engine.federated.cohort import Engine, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean.engine import Lean
from knot_runner.engine.federated.ray_engine import RayEngine
from knot_runner.engine.federated.stacked.engine import Stacked
from knot_runner.util.processes import Ended

#: Seconds that a run waits for others, at least and at most.
WAIT_SECONDS = 0.005, 0.5


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


@dataclass(eq=False)
class WaitingCohort:
    """One run's cohort, and its result or error."""

    cohort: list[LocalTraining]
    trained: list[Trained] | None = None
    problem: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.trained is not None or self.problem is not None

    def outcome(self) -> list[Trained]:
        """The trained cohort. Raises the cohort's error, or :class:`Ended`."""
        if self.trained is None:
            raise self.problem or Ended("the engine has ended")
        return self.trained


class BatchedEngine(ExclusiveEngine):
    """The stacked engine for several runs: cohorts that wait at the same time train as one batch.

    A batch starts when every run that shares the engine waits for it, or when nothing arrived for as long as the last
    training took (within ``WAIT_SECONDS``): waiting costs at most twice the optimum. The batch decides the width of a
    stack, so with ``stack=0`` float32 may round differently from time to time; with a fixed stack no number depends on
    it.
    """

    def __init__(self, engine: Stacked, computing: threading.Lock) -> None:
        super().__init__(engine, computing)
        self._changed = threading.Condition()
        self._waiting: list[WaitingCohort] = []
        self._users, self._busy = 0, False
        self._patience, self._last = WAIT_SECONDS[0], time.monotonic()

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`SharedEngine`. An error of one cohort is raised for its run alone."""
        mine = WaitingCohort(cohort)
        with self._changed:
            self._waiting.append(mine)
            self._notify()
            while not (mine.done or self._stopped):
                seconds = self._seconds_left()
                if self._busy or seconds > 0:
                    self._changed.wait(None if self._busy else seconds)
                else:
                    self._train_waiting()
        return mine.outcome()

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`SharedEngine`; one run at a time. It counts as an arrival: the run will train soon."""
        found = super().logits(requests)
        with self._changed:
            self._notify()
        return found

    def users(self, count: int) -> None:
        """See :class:`SharedEngine`."""
        with self._changed:
            self._users = count
            self._notify()

    def stop(self) -> None:
        """See :class:`SharedEngine`."""
        super().stop()
        with self._changed:
            self._changed.notify_all()

    def _notify(self) -> None:
        self._last = time.monotonic()
        self._changed.notify_all()

    def _seconds_left(self) -> float:
        if len(self._waiting) >= self._users:
            return 0.0
        return self._last + self._patience - time.monotonic()

    def _train_waiting(self) -> None:
        """Train all waiting cohorts; the lock is released meanwhile."""
        batch, self._waiting, self._busy = in_order(self._waiting), [], True
        self._changed.release()
        started = time.monotonic()
        try:
            self._train_batch(batch)
        finally:
            self._changed.acquire()
            self._patience = min(max(time.monotonic() - started, WAIT_SECONDS[0]), WAIT_SECONDS[1])
            self._busy = False
            self._notify()

    def _train_batch(self, batch: list[WaitingCohort]) -> None:
        try:
            found = iter(super().train([request for each in batch for request in each.cohort]))
        except Exception as problem:
            if len(batch) == 1:
                batch[0].problem = problem
                return
            for each in batch:  # one by one, to find the faulty cohort
                self._train_batch([each])
        except BaseException as stop:
            for each in batch:
                each.problem = stop
            raise
        else:
            for each in batch:
                each.trained = [next(found) for _ in each.cohort]


def in_order(waiting: list[WaitingCohort]) -> list[WaitingCohort]:
    """The same order whichever arrived first: by recipe, round, seed and clients; ties by the tensors."""
    groups = [list(same_name) for _, same_name in groupby(sorted(waiting, key=_name), key=_name)]
    return [each for group in groups for each in (sorted(group, key=_digest) if len(group) > 1 else group)]


def _name(waiting: WaitingCohort) -> tuple[str, list[tuple[int, int, int]]]:
    cohort = waiting.cohort
    return str(cohort[0].recipe if cohort else ""), [(each.round, each.seed, each.client) for each in cohort]


def _digest(waiting: WaitingCohort) -> bytes:
    """Of all tensors of the cohort, each read once."""
    found, seen = hashlib.sha256(), set[int]()
    for request in waiting.cohort:
        start = request.start
        for tensor in (start.weights, start.buffers, request.rows, request.test_rows, request.control):
            if tensor is not None and tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found.update(tensor.contiguous().numpy())
    return found.digest()
