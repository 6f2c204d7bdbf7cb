"""Worker processes of one thread each that share the samples; they die with their parent."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing import connection
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from knot_runner.util.errors import UserError
from knot_runner.util.processes import Memory, aligned, die_with_parent, prepared

#: (task, shared arrays) -> result; a function of a module, so that another process finds it
Work = Callable[[Any, list[np.ndarray]], Any]


#: slow imports of a worker
_PRELOADED = ["knot_runner.transport.otdd.matrix"]


class SharedArrays:
    """Copies of arrays in memory shared with every process started with this among its arguments."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._forms = [(array.shape, array.dtype) for array in arrays]
        self.memory = Memory(sum(aligned(array.nbytes) for array in arrays))
        for mine, array in zip(self.arrays(), arrays, strict=True):
            mine[...] = array

    def arrays(self) -> list[np.ndarray]:
        """Views of what was given, in that order."""
        begin, views = 0, []
        for shape, dtype in self._forms:
            view = np.ndarray(shape, dtype, self.memory.map, begin)
            views.append(view)
            begin += aligned(view.nbytes)
        return views


class OtddPool:
    """``workers`` processes that run tasks on ``arrays``; with one worker, this process runs them itself.

    Use it in a ``with`` statement: at its end, however it ends, the processes are gone.
    """

    def __init__(self, arrays: list[np.ndarray], workers: int) -> None:
        self._arrays = arrays
        self._processes, self._pipes = [], []
        if workers > 1:
            self._start(SharedArrays(arrays), workers)

    def _start(self, shared: SharedArrays, workers: int) -> None:
        context = prepared(_PRELOADED)
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, shared), daemon=True)
            process.start()
            theirs.close()  # so that a worker's death ends our end
            self._processes.append(process)
            self._pipes.append(ours)
        shared.memory.close()

    def __enter__(self) -> OtddPool:
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()

    def run(self, work: Work, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """(index, ``work(task, arrays)``) of every task, in the order in which they end.

        Raises what ``work`` raises, and :class:`UserError` when a worker process died.
        """
        if not self._processes:
            with threadpool_limits(1, "blas"):  # as in a worker: the number of threads changes the last digits
                yield from ((index, work(task, self._arrays)) for index, task in enumerate(tasks))
            return
        try:
            yield from self._pooled(work, tasks)
        except (EOFError, ConnectionError):
            raise UserError(
                "hardware.workers: a worker process died (out of memory?); repeat the command to go on, "
                "with hardware.workers=1 if it dies again"
            ) from None

    def _pooled(self, work: Work, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        waiting, in_flight = enumerate(tasks), {}

        def begin(pipe: connection.Connection) -> None:
            for index, task in islice(waiting, 1):
                in_flight[pipe] = index
                pipe.send((work, task))

        for pipe in self._pipes:
            begin(pipe)
        while in_flight:
            for pipe in connection.wait(list(in_flight)):
                problem, result = pipe.recv()
                if problem is not None:
                    raise problem
                index = in_flight.pop(pipe)
                begin(pipe)
                yield index, result


def _serve(pipe: connection.Connection, shared: SharedArrays) -> None:
    """Loop of a worker: run tasks until the pipe closes or the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and ends its workers itself
    die_with_parent()
    arrays = shared.arrays()
    with threadpool_limits(1, "blas"):
        while True:
            try:
                work, task = pipe.recv()
            except EOFError:
                return
            try:
                reply = None, work(task, arrays)
            except UserError as problem:
                reply = problem, None
            except Exception:  # whatever it is, the parent must hear of it
                reply = RuntimeError(f"in a worker process: {traceback.format_exc()}"), None
            pipe.send(reply)
