"""Worker processes of one thread each that share the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from knot_runner.util.workers import Handler, Send, SharedArrays, TaskPool

#: (task, shared arrays) -> result; a function of a module, so that another process finds it
Work = Callable[[Any, list[np.ndarray]], Any]
#: slow imports of a worker
_PRELOADED = ["knot_runner.transport.otdd.matrix"]


class OtddPool:
    """``workers`` processes that run tasks on ``arrays``; with one worker, this process runs them itself.

    Use it in a ``with`` statement, which ends the processes in any case.
    """

    def __init__(self, arrays: list[np.ndarray], workers: int) -> None:
        self._arrays = arrays
        self._pool: TaskPool | None = None
        if workers > 1:
            shared = SharedArrays(arrays)
            self._pool = TaskPool(workers, _PRELOADED, _prepare, shared)
            shared.memory.close()

    def __enter__(self) -> OtddPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()

    def run(self, work: Work, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """(index, ``work(task, arrays)``) of every task, in order of completion.

        Raises what ``work`` raises, and :class:`UserError` when a worker process died.
        """
        if self._pool is None:
            with threadpool_limits(1, "blas"):  # as in a worker: the number of threads changes the last digits
                yield from ((index, work(task, self._arrays)) for index, task in enumerate(tasks))
            return
        for index, error, result in self._pool.run((work, task) for task in tasks):
            if error is not None:
                raise error
            yield index, result


def _prepare(_: Send, shared: SharedArrays) -> Handler:
    """In the worker: one thread, and the function that runs a task."""
    threadpool_limits(1, "blas")
    arrays = shared.arrays()
    return lambda request: request[0](request[1], arrays)
