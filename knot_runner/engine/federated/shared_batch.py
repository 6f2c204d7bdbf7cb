"""Training of several runs as one stack: who is ready waits a little for the others, and one thread trains for all."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor

from knot_runner.engine.federated.cohort import Inference, LocalTraining, Trained
from knot_runner.engine.federated.shared_pool import ExclusiveEngine
from knot_runner.engine.federated.stacked import Stacked
from knot_runner.util.processes import Ended

#: Seconds that a run waits for others, at least and at most.
WAIT_SECONDS = 0.005, 0.5


@dataclass(eq=False)
class WaitingCohort:
    """One run's cohort, and what came of it."""

    cohort: list[LocalTraining]
    trained: list[Trained] | None = None
    problem: BaseException | None = None

    @property
    def over(self) -> bool:
        return self.trained is not None or self.problem is not None

    def outcome(self) -> list[Trained]:
        """The cohort trained, or what went wrong, raised."""
        if self.trained is None:
            raise self.problem or Ended("the engine has ended")
        return self.trained


class BatchedEngine(ExclusiveEngine):
    """The stacked engine for several runs: cohorts that wait at the same time train as one.

    It begins when every run that has the engine waits for it. One that computes elsewhere does not hold up the others:
    when nothing arrived for as long as the last training took (within ``WAIT_SECONDS``), it begins without them,
    which costs no more than twice what the best moment would have. What is merged decides the width of a stack, so with
    ``stack=0`` float32 may round differently from time to time; with a fixed stack no number depends on it.
    """

    def __init__(self, engine: Stacked, turn: threading.Lock) -> None:
        super().__init__(engine, turn)
        self._changed = threading.Condition()
        self._waiting: list[WaitingCohort] = []
        self._users, self._busy = 0, False
        self._patience, self._last = WAIT_SECONDS[0], time.monotonic()

    def train(self, cohort: list[LocalTraining]) -> list[Trained]:
        """See :class:`Shared`. What is wrong with one cohort is raised for its run alone."""
        mine = WaitingCohort(cohort)
        with self._changed:
            self._waiting.append(mine)
            self._stir()
            while not (mine.over or self._stopped):
                seconds = self._seconds_left()
                if self._busy or seconds > 0:
                    self._changed.wait(None if self._busy else seconds)
                else:
                    self._lead()
        return mine.outcome()

    def logits(self, requests: list[Inference]) -> list[Tensor]:
        """See :class:`Shared`; one run at a time. Who measures will soon be back, which counts as an arrival."""
        found = super().logits(requests)
        with self._changed:
            self._stir()
        return found

    def users(self, count: int) -> None:
        """See :class:`Shared`."""
        with self._changed:
            self._users = count
            self._stir()

    def stop(self) -> None:
        """See :class:`Shared`."""
        super().stop()
        with self._changed:
            self._changed.notify_all()

    def _stir(self) -> None:
        self._last = time.monotonic()
        self._changed.notify_all()

    def _seconds_left(self) -> float:
        if len(self._waiting) >= self._users:
            return 0.0
        return self._last + self._patience - time.monotonic()

    def _lead(self) -> None:
        """Train for all who wait; the lock is theirs meanwhile."""
        batch, self._waiting, self._busy = in_order(self._waiting), [], True
        self._changed.release()
        began = time.monotonic()
        try:
            self._carry_out(batch)
        finally:
            self._changed.acquire()
            self._patience = min(max(time.monotonic() - began, WAIT_SECONDS[0]), WAIT_SECONDS[1])
            self._busy = False
            self._stir()

    def _carry_out(self, batch: list[WaitingCohort]) -> None:
        try:
            found = iter(super().train([request for each in batch for request in each.cohort]))
        except Exception as problem:
            if len(batch) == 1:
                batch[0].problem = problem
                return
            for each in batch:  # whose it is shows when each is alone
                self._carry_out([each])
        except BaseException as stop:
            for each in batch:
                each.problem = stop
            raise
        else:
            for each in batch:
                each.trained = [next(found) for _ in each.cohort]


def in_order(waiting: list[WaitingCohort]) -> list[WaitingCohort]:
    """The same order whoever came first: by recipe, round, seed and clients; where these are equal, by the tensors."""
    groups = [list(alike) for _, alike in groupby(sorted(waiting, key=_name), key=_name)]
    return [each for group in groups for each in (sorted(group, key=_digest) if len(group) > 1 else group)]


def _name(waiting: WaitingCohort) -> tuple[str, list[tuple[int, int, int]]]:
    cohort = waiting.cohort
    return str(cohort[0].recipe if cohort else ""), [(each.round, each.seed, each.client) for each in cohort]


def _digest(waiting: WaitingCohort) -> bytes:
    """Of all tensors of the cohort, each read once."""
    found, seen = hashlib.sha256(), set[int]()
    for request in waiting.cohort:
        for tensor in (request.weights, request.buffers, request.rows, request.test_rows, request.control):
            if tensor is not None and tensor.data_ptr() not in seen:
                seen.add(tensor.data_ptr())
                found.update(tensor.contiguous().numpy())
    return found.digest()
