"""Worker processes of one thread each that share the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing import connection
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from knot_runner.util.workers import Handler, Send, SharedArrays, WorkerProcess

#: (task, shared arrays) -> result; a function of a module, so that another process finds it
Work = Callable[[Any, list[np.ndarray]], Any]
#: slow imports of a worker
_PRELOADED = ["knot_runner.transport.otdd.matrix"]


class OtddPool:
    """``workers`` processes that run tasks on ``arrays``; with one worker, this process runs them itself.

    Use it in a ``with`` statement: at its end, however it ends, the processes are gone.
    """

    def __init__(self, arrays: list[np.ndarray], workers: int) -> None:
        self._arrays, self._workers = arrays, []
        if workers > 1:
            shared = SharedArrays(arrays)
            self._workers = [WorkerProcess(_PRELOADED, _prepare, shared) for _ in range(workers)]
            for worker in self._workers:
                worker.start()
            shared.memory.close()

    def __enter__(self) -> OtddPool:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.reap()

    def run(self, work: Work, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """(index, ``work(task, arrays)``) of every task, in order of completion.

        Raises what ``work`` raises, and :class:`UserError` when a worker process died.
        """
        if self._workers:
            yield from self._pooled(enumerate(tasks), work)
            return
        with threadpool_limits(1, "blas"):  # as in a worker: the number of threads changes the last digits
            yield from ((index, work(task, self._arrays)) for index, task in enumerate(tasks))

    def _pooled(self, waiting: Iterator[tuple[int, Any]], work: Work) -> Iterator[tuple[int, Any]]:
        in_flight: dict[connection.Connection, tuple[WorkerProcess, int]] = {}

        def start_next(worker: WorkerProcess) -> None:
            for index, task in islice(waiting, 1):
                worker.send((work, task))
                in_flight[worker.pipe] = worker, index

        for worker in self._workers:
            start_next(worker)
        while in_flight:
            for pipe in connection.wait(list(in_flight)):
                worker, index = in_flight.pop(pipe)
                error, result = worker.receive()
                if error is not None:
                    raise error
                start_next(worker)
                yield index, result


def _prepare(_: Send, shared: SharedArrays) -> Handler:
    """In the worker: one thread, and the function that runs a task."""
    threadpool_limits(1, "blas")
    arrays = shared.arrays()
    return lambda request: request[0](request[1], arrays)
