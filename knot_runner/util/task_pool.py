"""Worker processes for independent tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing import connection
from typing import Any

from knot_runner.util.workers import Handler, WorkerProcess


class TaskPool:
    """``workers`` processes, begun at once, each after the imports ``preloaded`` with the handler that
    ``prepare(send, *arguments)`` returns (workers.py).

    Use it in a ``with`` statement, which ends the processes in any case. Raises OSError when the system has no room for
    them.
    """

    def __init__(self, workers: int, preloaded: list[str], prepare: Callable[..., Handler], *arguments: Any) -> None:
        self._workers = [WorkerProcess(preloaded, prepare, *arguments) for _ in range(workers)]
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TaskPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes."""
        for worker in self._workers:
            worker.reap()

    def run(self, requests: Iterable[Any]) -> Iterator[tuple[int, Exception | None, Any]]:
        """(index, its error or None, its result) of every request, in order of completion.

        A request is taken from ``requests`` when a process is free for it. Raises :class:`UserError` when a process
        died.
        """
        waiting = enumerate(requests)
        in_flight: dict[connection.Connection, tuple[WorkerProcess, int]] = {}

        def start_next(worker: WorkerProcess) -> None:
            for index, request in islice(waiting, 1):
                worker.send(request)
                in_flight[worker.pipe] = worker, index

        for worker in self._workers:
            start_next(worker)
        while in_flight:
            for pipe in connection.wait(list(in_flight)):
                worker, index = in_flight.pop(pipe)
                error, result = worker.receive()
                start_next(worker)
                yield index, error, result
