"""Worker processes for the stages of a run: every request is executed once, those of other processes last."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.engine.loop import BUSY, RETRY, Place, ProgressCallback, run_one
from knot_runner.engine.requests import StageRequest, Train, request_title
from knot_runner.util.files import BusyError
from knot_runner.util.workers import Handler, Send, WorkerProcess

#: Seconds between two events of one worker.
EVENTS_EVERY = 0.2
#: Slow imports of a worker: torch's optimizers import torch._dynamo.
_PRELOADED = ["knot_runner.engine.worker_pool", "torch._dynamo"]
#: The slowest, which models of images do without.
_OF_TEXTS = ["transformers.models.bert.modeling_bert"]


@dataclass(frozen=True)
class Event:
    """Progress of a request; for a :data:`ProgressCallback`."""

    title: str
    done: int
    total: int
    text: str


class WorkerPool:
    """Up to ``hardware.num_workers`` processes with ``hardware.threads`` threads each, started when they are needed."""

    def __init__(self, place: Place, hardware: HardwareSettings, plugins: list[str]) -> None:
        self._count, self._arguments = worker_count(hardware), (place, hardware, plugins)
        self._idle: list[WorkerProcess] = []
        self._running: dict[Connection, tuple[WorkerProcess, StageRequest]] = {}

    def run(self, requests: list[StageRequest], watch: ProgressCallback) -> None:
        """Return when all ``requests`` are in the store; ``watch`` is called with their progress.

        Raises the error of the first request that fails, :class:`WorkerDied`, and OSError where the system has no room
        for a process; what is running then is ended.
        """
        waiting = deque(sorted(requests, key=lambda one: isinstance(one, Train)))  # predictions unblock trainings
        later: deque[tuple[float, StageRequest]] = deque()
        try:
            while waiting or later or self._running:
                while later and later[0][0] <= time.monotonic():
                    waiting.append(later.popleft()[1])
                while waiting and len(self._running) < self._count:
                    self._start(waiting.popleft())
                for pipe in connection.wait(list(self._running), RETRY if later else None):
                    worker, request = self._running[pipe]
                    message = worker.receive()
                    if isinstance(message, Event):
                        watch(message.title, message.done, message.total, message.text)
                        continue
                    del self._running[pipe]
                    self._idle.append(worker)
                    error, _ = message
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
        if self._idle:
            worker = self._idle.pop()
        else:
            of_texts = _OF_TEXTS if "tokenizers" in sys.modules else []  # texts have been encoded by then
            worker = WorkerProcess([*_PRELOADED, *of_texts], prepare_stages, *self._arguments)
        self._running[worker.pipe] = worker, request
        worker.send(request)


def prepare_stages(send: Send, place: Place, hardware: HardwareSettings, plugins: list[str]) -> Handler:
    """In the worker: device, plug-ins, and the function that executes a request."""
    prepare_device(hardware)
    load_plugins(plugins)
    last = 0.0

    def watch(title: str, done: int, total: int, text: str) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > EVENTS_EVERY:
            last = time.monotonic()
            send(Event(title, done, total, text))

    def execute(request: StageRequest) -> None:
        run_one(request, place, watch)

    return execute
