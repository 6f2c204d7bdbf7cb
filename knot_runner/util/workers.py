"""Worker processes: forked from a preloaded server, they answer requests one by one and die with their parent."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from knot_runner.util.errors import UserError
from knot_runner.util.processes import Surroundings, begin_child, prepared, start_process
from knot_runner.util.shared_memory import Memory, aligned, place_in_file

#: Sends a message (progress) to the parent before the reply.
Send = Callable[[Any], None]
#: Executes one request in a worker process, with the result as its value.
Handler = Callable[[Any], Any]
_DIED = (
    "hardware.workers: a worker process died (out of memory?); repeat the command to go on, "
    "with hardware.workers=1 if it dies again"
)


class WorkerDied(UserError):
    """A worker process died before its reply, or was stopped."""

    def __init__(self, text: str = _DIED) -> None:
        super().__init__(text)


class WorkerProcess:
    """A process that answers requests in order; started for the first, and anew for the next one after its death.

    ``prepare(send, *arguments)`` runs in the process, after the imports ``preloaded``, and returns the handler of its
    requests. All methods but :meth:`stop` are for the one thread that uses the worker.
    """

    def __init__(self, preloaded: list[str], prepare: Callable[..., Handler], *arguments: Any) -> None:
        self._preloaded, self._arguments = preloaded, (prepare, *arguments)
        self._lock, self._stopped = threading.Lock(), False
        self._process: BaseProcess | None = None
        self.pipe: Connection | None = None

    def start(self) -> None:
        """Start the process. Raises OSError when the system has no room for it, WorkerDied after :meth:`stop`."""
        with self._lock:
            if self._stopped:
                raise WorkerDied
            context = prepared(self._preloaded)
            self._process, self.pipe = start_process(context, _begin, Surroundings(), *self._arguments, daemon=True)

    def send(self, request: Any) -> None:
        """Send a request. Raises what :meth:`start` and pickling raise, and WorkerDied."""
        if self._process is None:
            self.start()
        try:
            self.pipe.send(request)
        except OSError:
            self.reap()
            raise WorkerDied from None

    def receive(self) -> Any:
        """The next reply (error or None, result), or message that the handler sent before. Raises WorkerDied."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.reap()
            raise WorkerDied from None

    def reap(self) -> None:
        """Kill the process, if there is one, and free its resources."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self.pipe.close()
            with contextlib.suppress(ValueError):  # another thread that starts a process may have just reaped it
                process.close()

    def stop(self) -> None:
        """Kill the process for good, from any thread; :meth:`receive` then raises WorkerDied."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()


def _begin(pipe: Connection, surroundings: Surroundings, prepare: Callable[..., Handler], *arguments: Any) -> None:
    """The main function of a worker process."""
    surroundings.adopt()
    serve(pipe, prepare, *arguments)


def serve(pipe: Connection, prepare: Callable[..., Handler], *arguments: Any) -> None:
    """Loop of a worker process: reply to requests until the pipe closes or the parent dies.

    If ``prepare`` fails, its error answers every request, unread: without plug-ins a request may not even unpickle.
    """
    begin_child()
    error, handler = _result(prepare, pipe.send, *arguments)
    with contextlib.suppress(EOFError, ConnectionError):  # reset: the parent died with replies unread
        while error is not None:
            pipe.recv_bytes()
            pipe.send((error, None))
        while True:
            pipe.send(_result(handler, pipe.recv()))


def _result(function: Callable[..., Any], *arguments: Any) -> tuple[Exception | None, Any]:
    """(None, result), or the error: a UserError as it is, any other as the text of its traceback."""
    try:
        return None, function(*arguments)
    except UserError as error:
        return error, None
    except Exception:
        return RuntimeError(f"in a worker process: {traceback.format_exc()}"), None


class SharedArrays:
    """Copies of arrays in memory shared with every process started with this among its arguments; arrays that lie on a
    mapped file are not copied."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        files = [place_in_file(array) if array.nbytes else None for array in arrays]
        copied = [array for array, place in zip(arrays, files, strict=True) if place is None]
        self.memory = Memory(max(sum(aligned(array.nbytes) for array in copied), 1))
        self._places, start = list[tuple[Memory, int, tuple[int, ...], np.dtype]](), 0
        for array, place in zip(arrays, files, strict=True):
            memory, at = place or (self.memory, start)
            self._places.append((memory, at, array.shape, array.dtype))
            start += 0 if place else aligned(array.nbytes)
        for copy, array, place in zip(self.arrays(), arrays, files, strict=True):
            if place is None:
                copy[...] = array

    def expect(self, place: int, rows: np.ndarray) -> None:
        """Asks the system to read ahead ``rows`` [n] of the array at ``place``, if it lies on a mapped file and the
        rows are near each other; does not wait."""
        memory, at, shape, dtype = self._places[place]
        if memory is self.memory or not len(rows):
            return
        first, last = int(rows.min()), int(rows.max()) + 1
        if last - first <= 2 * len(rows):
            size = int(np.prod(shape[1:])) * dtype.itemsize
            memory.read_ahead(at + first * size, (last - first) * size)

    def arrays(self) -> list[np.ndarray]:
        """Views of the arrays, in the order given."""
        return [np.ndarray(shape, dtype, memory.map, at) for memory, at, shape, dtype in self._places]


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
