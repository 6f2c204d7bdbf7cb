"""Requests to artefacts: what is finished is loaded, what is missing is computed, side by side where possible."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from knot_runner.engine import loop
from knot_runner.engine.hardware import prepare
from knot_runner.engine.plugins import load_plugins
from knot_runner.engine.requests import Request, Train, request_key, title
from knot_runner.engine.store import Artefact, Store
from knot_runner.errors import UserError
from knot_runner.processes import die_with_parent
from knot_runner.settings import HardwareSettings

#: (title, finished steps, all steps, short text) -> None
Watch = Callable[[str, int, int, str], None]


class Executor:
    """Executes requests on one machine. A context manager, since it may hold worker processes.

    Independent trainings are dealt to ``hardware.workers`` processes with ``hardware.threads`` threads each; the
    numbers are the same for any number of workers, because every request draws from generators of its own.
    """

    def __init__(
        self, store: Store, hardware: HardwareSettings, data_root: Path | None, plugins: list[str], watch: Watch
    ) -> None:
        self.place = loop.Place(store, prepare(hardware), data_root)
        self._hardware, self._plugins, self._watch = hardware, plugins, watch
        self._pool: ProcessPoolExecutor | None = None
        self._events: Any = None

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:  # nobody will use the trainings under way, and a commit loses at most their epoch
            for child in multiprocessing.active_children():
                child.kill()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def __call__(self, requests: list[Request]) -> list[Artefact]:
        """The artefact of every request, in order."""
        keys = [(folder_name(request), request_key(request)) for request in requests]
        missing = {}
        for request, key in zip(requests, keys, strict=True):
            if key not in missing and self.place.store.find(*key) is None:
                missing[key] = request
        if self._use_workers(list(missing.values())):
            self._side_by_side(list(missing.values()))
        else:
            for request in missing.values():
                run_one(request, self.place, self._watch)
        return [self.place.store.get(*key) for key in keys]

    def _use_workers(self, missing: list[Request]) -> bool:
        workers = self._hardware.workers or os.cpu_count() or 1
        if self.place.device.type != "cpu" or workers < 2 or len(missing) < 2:
            return False
        # starting processes costs seconds, so short predictions do not start them, but use them when they are there
        return self._pool is not None or any(isinstance(request, Train) for request in missing)

    def _side_by_side(self, requests: list[Request]) -> None:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._events = context.SimpleQueue()
            self._pool = ProcessPoolExecutor(
                self._hardware.workers or os.cpu_count() or 1,
                mp_context=context,
                initializer=_start_worker,
                initargs=(self.place, self._hardware, self._plugins, self._events),
            )
        waiting = {self._pool.submit(_work, request) for request in requests}
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=0.1)
                while not self._events.empty():
                    self._watch(*self._events.get())
                for future in done:
                    future.result()
        except BrokenProcessPool:
            raise UserError(
                "hardware.workers: a worker process died (out of memory?); repeat the command to go on, "
                "with hardware.workers=1 if it dies again"
            ) from None


def folder_name(request: Request) -> str:
    """The store's folder for this kind of request."""
    return request.stage if isinstance(request, Train) else "predictions"


def run_one(request: Request, place: loop.Place, watch: Watch) -> Artefact:
    """Compute one request under its lock, unless another process finished it meanwhile."""
    stage, key = folder_name(request), request_key(request)
    name = title(request)

    def report(done: int, total: int, text: str) -> None:
        watch(name, done, total, text)

    with place.store.lock(stage, key):
        found = place.store.find(stage, key)
        if found is not None:
            return found
        if isinstance(request, Train):
            tensors, facts = loop.train(request, place, place.store.folder(stage, key), report)
        else:
            tensors, facts = loop.predict(request, place, report)
        watch(name, 1, 1, "done")
        facts |= {"device": str(place.device), "torch": torch.__version__, "threads": torch.get_num_threads()}
        return place.store.put(stage, key, tensors, {"title": name, **facts})


# --------------------------------------------------------------------------------------------- in a worker process

_worker: tuple[loop.Place, Watch] | None = None


def _start_worker(place: loop.Place, hardware: HardwareSettings, plugins: list[str], events: Any) -> None:
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and ends its workers itself
    die_with_parent()
    prepare(hardware)
    load_plugins(plugins)
    last = 0.0

    def watch(name: str, done: int, total: int, text: str) -> None:
        nonlocal last
        if done == total or time.monotonic() - last > 0.2:
            last = time.monotonic()
            events.put((name, done, total, text))

    _worker = (place, watch)


def _work(request: Request) -> None:
    assert _worker is not None
    run_one(request, *_worker)
