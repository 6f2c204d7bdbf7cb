"""Requests to artifacts: finished ones are loaded, missing ones computed, on a CPU in parallel."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from knot_runner.config.devices import is_host
from knot_runner.config.settings import HardwareSettings
from knot_runner.engine.hardware import prepare_device, worker_count
from knot_runner.engine.loop import Place, ProgressCallback, StageKey, key_of, missing_of, run_each
from knot_runner.engine.requests import Predict, StageRequest
from knot_runner.engine.store import Artifact, Store
from knot_runner.engine.worker_pool import WorkerPool


class Executor:
    """Executes requests on one machine. A context manager, since it may hold worker processes.

    Independent trainings run in ``hardware.num_workers`` processes with ``hardware.threads`` threads each; the numbers
    are the same for any number of workers, because every request has its own random generators. Requests that another
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

    def __call__(self, requests: list[StageRequest]) -> list[Artifact]:
        """The artifact of every request, in order."""
        missing = missing_of(requests, self.place.store)
        if missing:
            self._compute(missing)
        return [self.place.store.get(*key_of(request)) for request in requests]

    def _compute(self, missing: dict[StageKey, StageRequest]) -> None:
        if not self._use_workers(missing):
            run_each(missing.values(), self.place, self._watch)
            return
        if self._pool is None:
            self._pool = WorkerPool(self.place, self._hardware, self._plugins)
        self._pool.run(list(missing.values()), self._watch)

    def _use_workers(self, missing: dict[StageKey, StageRequest]) -> bool:
        if not is_host(self.place.device.type) or worker_count(self._hardware) < 2 or len(missing) < 2:
            return False
        # starting processes costs seconds: predictions alone do not start any, but use running ones
        return self._pool is not None or any(not isinstance(request, Predict) for request in missing.values())
