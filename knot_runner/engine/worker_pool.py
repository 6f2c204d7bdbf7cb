"""Deals requests to worker processes: every request is executed once, those that another process computes come last."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection

from knot_runner.engine.loop import BUSY, RETRY, ProgressCallback
from knot_runner.engine.requests import StageRequest, Train, request_title
from knot_runner.engine.worker import Event
from knot_runner.util.files import BusyError
from knot_runner.util.workers import WorkerDied, WorkerProcess


class WorkerPool:
    """Up to ``count`` workers, each made by ``make`` when it is first needed, until :meth:`close`."""

    def __init__(self, make: Callable[[], WorkerProcess], count: int) -> None:
        self._make, self._count = make, count
        self._idle: list[WorkerProcess] = []
        self._running: dict[Connection, tuple[WorkerProcess, StageRequest]] = {}

    def run(self, requests: list[StageRequest], watch: ProgressCallback) -> None:
        """Return when all ``requests`` are in the store; ``watch`` is called with their progress.

        A request at which a worker died, perhaps from the memory of the others, runs again when nothing else does.
        Raises the error of the first request that fails, :class:`WorkerDied` of one that dies twice, and OSError where
        the system has no room for a process; what is running then is ended.
        """
        waiting = deque(sorted(requests, key=lambda one: isinstance(one, Train)))  # predictions unblock trainings
        later: deque[tuple[float, StageRequest]] = deque()
        alone: deque[StageRequest] = deque()
        died: list[StageRequest] = []
        try:
            while waiting or later or alone or self._running:
                while later and later[0][0] <= time.monotonic():
                    waiting.append(later.popleft()[1])
                if alone and not (waiting or later or self._running):
                    waiting.append(alone.popleft())
                while waiting and len(self._running) < self._count:
                    self._start(waiting.popleft())
                for pipe in connection.wait(list(self._running), RETRY if later else None):
                    worker, request = self._running[pipe]
                    try:
                        message = worker.receive()
                    except WorkerDied:
                        del self._running[pipe]
                        if request in died:
                            raise
                        died.append(request)
                        alone.append(request)
                        continue
                    if isinstance(message, Event):
                        watch(message.title, message.done, message.total, message.text)
                        continue
                    del self._running[pipe]
                    self._idle.append(worker)
                    error = message[0] or message[1]
                    if isinstance(error, BusyError):
                        watch(request_title(request), 0, 1, BUSY)
                        later.append((time.monotonic() + RETRY, request))
                    elif error is not None:
                        raise error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the workers. Commits are whole at any moment."""
        for worker in [*self._idle, *(worker for worker, _ in self._running.values())]:
            worker.reap()
        self._idle.clear()
        self._running.clear()

    def _start(self, request: StageRequest) -> None:
        worker = self._idle.pop() if self._idle else self._make()
        try:
            worker.send(request)
        except WorkerDied:  # an idle one was killed: another process of its answers
            worker.send(request)
        self._running[worker.pipe] = worker, request
