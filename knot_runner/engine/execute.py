"""Requests to artefacts: finished ones are loaded, missing ones computed, in parallel where possible.

The jobs of a fused sweep share one pool of workers: a stage that several jobs need is computed once. On a CPU even one
worker is a process there: training uses torch's global generator, which belongs to the process, and jobs are threads of
one. On a GPU each process would hold its own CUDA context, so a thread trains there, one request at a time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from knot_runner.config.settings import HardwareSettings
from knot_runner.config.strict import digest
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.engine.loop import Place, ProgressCallback, StageKey, key_of, missing_of, run_each, run_one
from knot_runner.engine.requests import Predict, StageRequest
from knot_runner.engine.seeds import seeded
from knot_runner.engine.store import Artefact, Store
from knot_runner.engine.worker import Event, Worker
from knot_runner.engine.worker_pool import WorkerPool
from knot_runner.util.processes import Ended


class Executor:
    """Executes requests on one machine. A context manager, since it may hold worker processes.

    Independent trainings run in ``hardware.workers`` processes with ``hardware.threads`` threads each; the numbers are
    the same for any number of workers, because every request has its own random generators. Requests that another
    process is computing (a second sweep, another job of this one) come last and are waited for.
    """

    def __init__(
        self,
        store: Store,
        hardware: HardwareSettings,
        data_root: Path | None,
        plugins: list[str],
        watch: ProgressCallback,
    ) -> None:
        self.place = Place(store, prepare_device(hardware), data_root)
        self._hardware, self._plugins, self._watch = hardware, plugins, watch
        self._pool: WorkerPool | None = None

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:  # after an exception nobody needs the running requests; at most an epoch is lost
            self._pool.close()

    def __call__(self, requests: list[StageRequest]) -> list[Artefact]:
        """The artefact of every request, in order."""
        missing = missing_of(requests, self.place.store)
        if missing:
            self._compute(missing)
        return [self.place.store.get(*key_of(request)) for request in requests]

    def _compute(self, missing: dict[StageKey, StageRequest]) -> None:
        if not self._use_workers(missing):
            run_each(missing.values(), self.place, self._watch)
            return
        if self._pool is None:
            self._pool = new_pool(self.place, self._hardware, self._plugins)
        self._pool.run(missing, self._watch)

    def _use_workers(self, missing: dict[StageKey, StageRequest]) -> bool:
        if self.place.device.type != "cpu" or worker_count(self._hardware) < 2 or len(missing) < 2:
            return False
        # starting processes costs seconds: predictions alone do not start any, but use running ones
        return self._pool is not None or any(not isinstance(request, Predict) for request in missing.values())


def new_pool(place: Place, hardware: HardwareSettings, plugins: list[str]) -> WorkerPool:
    """A pool of worker processes for the CPU, not yet started."""
    return WorkerPool(functools.partial(Worker, place, hardware, plugins), worker_count(hardware))


class ExecutorPool:
    """Executors for jobs that are threads of one process; equal hardware, store and data share workers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: by (store, digest of hardware, data root, plug-ins): jobs with equal ones share a pool
        self._pools: dict[tuple[Store, str, Path | None, tuple[str, ...]], WorkerPool] = {}
        self._closed = False

    def executor(
        self,
        store: Store,
        hardware: HardwareSettings,
        data_root: Path | None,
        plugins: list[str],
        watch: ProgressCallback,
    ) -> Executor:
        """Like :class:`Executor` of a job that runs by itself, with the same results, bit for bit.

        An error of a request reaches the jobs that wait for it and no other.
        """
        return _SharedExecutor(self._pool, store, hardware, data_root, plugins, watch)

    def close(self) -> None:
        """Kill all workers; waiting jobs get :class:`Ended`."""
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.close()

    def _pool(self, place: Place, hardware: HardwareSettings, plugins: list[str]) -> WorkerPool:
        group = (place.store, digest(hardware), place.data_root, tuple(plugins))
        with self._lock:
            if self._closed:
                raise Ended
            if group not in self._pools:
                on_cpu = place.device.type == "cpu"
                self._pools[group] = (
                    new_pool(place, hardware, plugins) if on_cpu else WorkerPool(lambda: _InThread(place, hardware), 1)
                )
            return self._pools[group]


class _SharedExecutor(Executor):
    """One job's executor on the shared workers, which outlive it."""

    def __init__(
        self, pool_of: Callable[[Place, HardwareSettings, list[str]], WorkerPool], store: Store,
        hardware: HardwareSettings, data_root: Path | None, plugins: list[str], watch: ProgressCallback,
    ) -> None:  # fmt: skip
        super().__init__(store, hardware, data_root, plugins, watch)
        self._pool_of = pool_of

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def _compute(self, missing: dict[StageKey, StageRequest]) -> None:
        self._pool_of(self.place, self._hardware, self._plugins).run(missing, self._watch)


class _InThread:
    """A worker without a process: the pool's thread trains itself, on a GPU."""

    def __init__(self, place: Place, hardware: HardwareSettings) -> None:
        self._place, self._hardware, self._stopped = place, hardware, False

    def run(self, request: StageRequest, on_event: Callable[[Event], None]) -> BaseException | None:
        """See :meth:`knot_runner.engine.worker.Worker.run`."""

        def watch(title: str, done: int, total: int, text: str) -> None:
            if self._stopped:  # a thread cannot be killed, but it calls this at every step
                raise Ended
            on_event(Event(title, done, total, text))

        try:
            prepare_device(self._hardware)  # threads are set per thread
            with seeded(0, "executor"):  # reserves torch's global generators, reseeded inside, for this thread
                run_one(request, self._place, watch)
        except BaseException as problem:
            return problem
        return None

    def stop(self) -> None:
        """End at the next step."""
        self._stopped = True

    def reap(self) -> None:
        """Nothing to free."""
