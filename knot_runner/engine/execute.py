"""Execute requests: load finished artifacts and compute missing ones, in parallel on a CPU."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from knot_runner.config.devices import is_host
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.engine.loop import (
    BUSY,
    RETRY,
    ProgressCallback,
    Resources,
    StageKey,
    key_of,
    missing_of,
    run_each,
    run_one,
)
from knot_runner.engine.requests import Predict, StageRequest, Train, request_title
from knot_runner.engine.store import Artifact, Store
from knot_runner.util.files import BusyError
from knot_runner.util.workers import Handler, Send, TaskPool

#: Seconds between two messages of one worker.
_MESSAGES_EVERY = 0.2
#: Slow imports of a worker: torch's optimizers import torch._dynamo.
_PRELOADED = ["knot_runner.engine.execute", "torch._dynamo"]
#: The slowest, which models of images do without.
_OF_TEXTS = ["transformers.models.bert.modeling_bert"]


class Executor:
    """Executes requests on one machine. It is a context manager, because it may hold worker processes.

    Independent requests run in ``hardware.num_workers`` processes with ``hardware.threads`` threads each. Results do
    not depend on the number of workers, because every request has its own random generators. Requests that another
    process is already computing (for another sweep, or another job of this one) come last, and the executor waits for
    their results.
    """

    def __init__(
        self,
        store: Store,
        hardware: HardwareSettings,
        data_root: Path | None,
        plugins: list[str],
        watch: ProgressCallback,
    ) -> None:
        self.resources = Resources(store, prepare_device(hardware), data_root)
        self._hardware, self._plugins, self._watch = hardware, plugins, watch
        self._pool: TaskPool | None = None

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_workers()

    def _end_workers(self) -> None:
        """Kill the worker processes, which is safe because their work is not needed and commits are always complete."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __call__(self, requests: list[StageRequest]) -> list[Artifact]:
        """Return the artifact of every request, in order."""
        missing = missing_of(requests, self.resources.store)
        if missing:
            self._compute(missing)
        return [self.resources.store.get(*key_of(request)) for request in requests]

    def _compute(self, missing: dict[StageKey, StageRequest]) -> None:
        if not self._use_workers(missing):
            run_each(missing.values(), self.resources, self._watch)
            return
        if self._pool is None:
            of_texts = _OF_TEXTS if "tokenizers" in sys.modules else []  # texts have been encoded by then
            arguments = self.resources, self._hardware, self._plugins
            self._pool = TaskPool(0, [*_PRELOADED, *of_texts], prepare_stages, *arguments)
        waiting = sorted(
            missing.values(), key=lambda request: isinstance(request, Train)
        )  # predictions unblock trainings
        try:
            while waiting:
                waiting = self._run(self._pool, waiting)
        except BaseException:
            self._end_workers()
            raise

    def _run(self, pool: TaskPool, requests: list[StageRequest]) -> list[StageRequest]:
        """Run ``requests`` in worker processes. Pause, then return the requests that another process is computing.

        Raises the error of the first request that fails, :class:`WorkerDied`, or OSError if the system cannot start a
        process.
        """
        pool.grow(min(worker_count(self._hardware), len(requests)))
        busy = []
        for index, error, _ in pool.run(requests, watch=lambda progress: self._watch(*progress)):
            if isinstance(error, BusyError):
                self._watch(request_title(requests[index]), 0, 1, BUSY)
                busy.append(requests[index])
            elif error is not None:
                raise error
        if busy:
            time.sleep(RETRY)
        return busy

    def _use_workers(self, missing: dict[StageKey, StageRequest]) -> bool:
        if not is_host(self.resources.device.type) or worker_count(self._hardware) < 2 or len(missing) < 2:
            return False
        # starting processes costs seconds: predictions alone do not start any, but use running ones
        return self._pool is not None or any(not isinstance(request, Predict) for request in missing.values())


def prepare_stages(send: Send, resources: Resources, hardware: HardwareSettings, plugins: list[str]) -> Handler:
    """Prepare a worker process. Return the function that executes a request and sends its progress."""
    prepare_device(hardware)
    load_plugins(plugins)
    last = 0.0

    def watch(title: str, done: int, total: int, text: str) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > _MESSAGES_EVERY:
            last = time.monotonic()
            send((title, done, total, text))

    def execute(request: StageRequest) -> None:
        run_one(request, resources, watch)

    return execute
