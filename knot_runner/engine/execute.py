"""Execute requests: load the results that are in the store, and compute the other results.

On a CPU, several processes compute in parallel.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from knot_runner.config.devices import is_host
from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.groups import HardwareSettings
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.engine.loop import ProgressCallback, Resources, key_of, missing_of, run_one
from knot_runner.engine.requests import Predict, StageRequest, Train, request_title
from knot_runner.engine.store import Artifact, Store
from knot_runner.util.files import BusyError
from knot_runner.util.workers import Handler, Send, TaskPool

#: If another process is computing a request, the executor checks again after this number of seconds.
RETRY = 0.2
#: Smallest number of seconds between two progress messages of one worker.
_MESSAGES_EVERY = 0.2
#: Modules that are slow to import and that every worker needs. Torch's optimizers import torch._dynamo.
_PRELOADED = ["knot_runner.engine.execute", "torch._dynamo"]
#: A module that is slow to import and that only text models need.
_OF_TEXTS = ["transformers.models.bert.modeling_bert"]


class Executor:
    """Context manager that executes lists of independent requests on one machine.

    On a CPU, the requests of a list are executed in ``hardware.num_workers`` processes with ``hardware.threads``
    threads each. Results do not depend on the number of workers. At the end of the ``with`` block, the worker processes
    are stopped.

    If a process outside this executor is already computing the result of a request, the executor handles this request
    last and waits for that process.
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
        self._hardware = hardware
        self._plugins = plugins
        self._watch = watch
        self._pool: TaskPool | None = None

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_workers()

    def _end_workers(self) -> None:
        """Kill the worker processes. This is safe: their results are not needed, and commits are always complete."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def __call__(self, requests: list[StageRequest]) -> list[Artifact]:
        """Return the artifact of each request, in the order of ``requests``. Missing artifacts are computed."""
        self._compute(list(missing_of(requests, self.resources.store).values()))
        return [self.resources.store.get(*key_of(request)) for request in requests]

    def _compute(self, requests: list[StageRequest]) -> None:
        """Compute ``requests``. Requests that another process is computing come last."""
        pool = self._pool_for(requests)
        if pool is not None:
            # predictions first: training may wait for them
            requests = sorted(requests, key=lambda request: isinstance(request, Train))
        try:
            while requests:
                requests = self._attempt(requests, pool)
        except BaseException:
            self._end_workers()
            raise

    def _attempt(self, requests: list[StageRequest], pool: TaskPool | None) -> list[StageRequest]:
        """Compute ``requests``. After a pause, return the requests that another process is computing, if any.

        Raises the error of the first request that fails, :class:`WorkerDied`, or OSError if the system cannot start a
        process.
        """
        busy = []
        for request, error in self._outcomes(requests, pool):
            if isinstance(error, BusyError):
                self._watch(request_title(request), 0, 1, "another process is working on it")
                busy.append(request)
            elif error is not None:
                raise error
        if busy:
            time.sleep(RETRY)
        return busy

    def _outcomes(
        self, requests: list[StageRequest], pool: TaskPool | None
    ) -> Iterator[tuple[StageRequest, Exception | None]]:
        """Yield each request when it ends, together with the error that it raised (None if it succeeded).

        Without a pool, only :class:`BusyError` is yielded. All other errors are raised.
        """
        if pool is not None:
            pool.grow(min(worker_count(self._hardware), len(requests)))
            # Every request has its own random generators, so results do not depend on the number of workers.
            for index, error, _ in pool.run(requests, watch=lambda progress: self._watch(*progress)):
                yield requests[index], error
            return
        for request in requests:
            try:
                run_one(request, self.resources, self._watch)
                yield request, None
            except BusyError as busy:
                yield request, busy

    def _pool_for(self, requests: list[StageRequest]) -> TaskPool | None:
        """Return the pool of worker processes that computes ``requests``; None to compute them in this process."""
        if not is_host(self.resources.device.type) or worker_count(self._hardware) < 2 or len(requests) < 2:
            return None
        # to start processes takes seconds, so requests that only predict use them only if they already run
        if self._pool is None and any(not isinstance(request, Predict) for request in requests):
            preloaded = [*_PRELOADED]
            if "tokenizers" in sys.modules:  # texts have been encoded by now
                preloaded += _OF_TEXTS
            self._pool = TaskPool(0, preloaded, prepare_stages, self.resources, self._hardware, self._plugins)
        return self._pool


def prepare_stages(send: Send, resources: Resources, hardware: HardwareSettings, plugins: list[str]) -> Handler:
    """Prepare the current worker process for stages, and return the function that executes a request of a stage.

    The returned function reports its progress by calling ``send``.
    """
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
