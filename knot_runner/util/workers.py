"""Worker processes. They answer requests one by one, and end when their parent process ends."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from knot_runner.util.errors import DivergedError, UserError
from knot_runner.util.files import BusyError
from knot_runner.util.processes import Surroundings, begin_child, prepared, start_process
from knot_runner.util.shared_memory import Memory, aligned, place_in_file

#: Function that sends a message, such as progress, to the parent before the reply.
Send = Callable[[Any], None]
#: Function that executes one request in a worker process and returns the result.
Handler = Callable[[Any], Any]
#: Maximum number of requests that a process holds: the current and the next request.
AHEAD = 2
_DIED = (
    "hardware.num_workers: a worker process died (out of memory?). Repeat the command to resume. "
    "If a worker dies again, use hardware.num_workers=1"
)


@dataclass(frozen=True)
class HandlerMessage:
    """A message, such as progress, that a worker process sends before its reply to a request."""

    content: Any


class WorkerDied(UserError):
    """A worker process died or was stopped before it replied."""

    def __init__(self, text: str = _DIED) -> None:
        super().__init__(text)


class WorkerProcess:
    """A process that answers requests in order, until :meth:`reap` is called or the process dies.

    Args:
        preloaded: Modules that are imported before the process starts (:func:`prepared`).
        prepare: Function that the process calls first, as ``prepare(send, *arguments)``. ``prepare`` returns the
            function that executes a request. ``send(content)`` sends a :class:`HandlerMessage`.
        arguments: The arguments of ``prepare`` after ``send``.

    Raises:
        OSError: The system cannot start the process.
    """

    def __init__(self, preloaded: list[str], prepare: Callable[..., Handler], *arguments: Any) -> None:
        context = prepared(preloaded)
        started = start_process(context, _begin, Surroundings(), prepare, *arguments, daemon=True)
        self.process, self.pipe = started

    def send(self, request: Any) -> None:
        """Send a request to the process. If the request cannot be pickled, pickle's error is raised.

        Raises:
            WorkerDied: The process died.
        """
        try:
            self.pipe.send(request)
        except OSError:
            self.reap()
            raise WorkerDied from None

    def receive(self) -> Any:
        """Return the next reply or :class:`HandlerMessage` of the process.

        A reply is a tuple (error or None, result).

        Raises:
            WorkerDied: The process died.
        """
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.reap()
            raise WorkerDied from None

    def reap(self) -> None:
        """Kill the process and free its resources. Repeated calls have no effect."""
        if not self.pipe.closed:
            self.process.kill()
            self.process.join()
            self.process.close()
            self.pipe.close()


def _begin(pipe: Connection, surroundings: Surroundings, prepare: Callable[..., Handler], *arguments: Any) -> None:
    """Reply to requests in a worker process until the pipe closes or the parent dies.

    If ``prepare`` fails, its error is the reply to every request. Requests are then not unpickled, because this may
    need plug-ins.
    """
    surroundings.adopt()
    begin_child()
    error, handler = _result(prepare, lambda content: pipe.send(HandlerMessage(content)), *arguments)
    with contextlib.suppress(EOFError, ConnectionError):  # ConnectionError: the parent died before it read all replies
        while error is not None:
            pipe.recv_bytes()
            pipe.send((error, None))
        while True:
            pipe.send(_result(handler, pipe.recv()))


def _result(function: Callable[..., Any], *arguments: Any) -> tuple[Exception | None, Any]:
    """Return (None, result), or (error, None): a user error unchanged, any other error as the text of the traceback."""
    try:
        return None, function(*arguments)
    except (UserError, DivergedError, BusyError) as error:
        return error, None
    except Exception:  # every error is sent to the parent, which raises it; this process continues
        return RuntimeError(f"in a worker process: {traceback.format_exc()}"), None


class SharedArrays:
    """Arrays in shared memory, for all processes that are started with this object as an argument.

    Arrays in a file that was mapped by :func:`map_file` are not copied. All other arrays are copied.
    """

    def __init__(self, arrays: list[np.ndarray]) -> None:
        files = [place_in_file(array) if array.nbytes else None for array in arrays]
        copied = [array for array, location in zip(arrays, files, strict=True) if location is None]
        self.memory = Memory(max(sum(aligned(array.nbytes) for array in copied), 1))
        self._places = list[tuple[Memory, int, tuple[int, ...], np.dtype]]()
        start = 0
        for array, location in zip(arrays, files, strict=True):
            memory, at = location or (self.memory, start)
            self._places.append((memory, at, array.shape, array.dtype))
            if location is None:
                start += aligned(array.nbytes)
        for copy, array, location in zip(self.arrays(), arrays, files, strict=True):
            if location is None:
                copy[...] = array

    def arrays(self) -> list[np.ndarray]:
        """Return the arrays as views of the shared memory, in the order in which they were passed."""
        return [np.ndarray(shape, dtype, memory.map, at) for memory, at, shape, dtype in self._places]


class TaskPool:
    """A pool of ``workers`` processes that execute requests. Call :meth:`close` to end the processes.

    The other arguments are those of :class:`WorkerProcess`.

    Raises:
        OSError: The system cannot start the processes.
    """

    def __init__(self, workers: int, preloaded: list[str], prepare: Callable[..., Handler], *arguments: Any) -> None:
        self._workers: list[WorkerProcess] = []
        self._begin = functools.partial(WorkerProcess, preloaded, prepare, *arguments)
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """Start processes until the pool has at least ``workers`` processes.

        Raises:
            OSError: The system cannot start a process.
        """
        try:
            while len(self._workers) < workers:
                self._workers.append(self._begin())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the processes. Repeated calls have no effect."""
        for worker in self._workers:
            worker.reap()
        self._workers.clear()

    def run(
        self, requests: Iterable[Any], ahead_of: int = 0, watch: Callable[[Any], None] = lambda content: None
    ) -> Iterator[tuple[int, Exception | None, Any]]:
        """Yield a tuple (index, error or None, result) for every request, in order of completion.

        Args:
            requests: The requests. A request is generated only when a process can receive it.
            ahead_of: If this is 0, a process receives its next request only after it has finished the current one. If
                this is the number of requests, a process may receive its next request earlier. Use 0 if requests are
                large.
            watch: Function that is called with the content of each :class:`HandlerMessage`.

        Raises:
            UserError: A process died.
        """
        waiting = enumerate(requests)
        in_flight = {worker.pipe: (worker, deque[int]()) for worker in self._workers}
        sent = 0

        def send_next(worker: WorkerProcess, indices: deque[int]) -> None:
            nonlocal sent
            for index, request in islice(waiting, 1):
                worker.send(request)
                indices.append(index)
                sent += 1

        for worker, indices in in_flight.values():
            send_next(worker, indices)
        while busy := [pipe for pipe, (_, indices) in in_flight.items() if indices]:
            for pipe in busy:
                worker, indices = in_flight[pipe]
                if len(indices) < AHEAD and ahead_of - sent > len(self._workers):
                    send_next(worker, indices)
            for pipe in connection.wait(busy):
                worker, indices = in_flight[pipe]
                received = worker.receive()
                if isinstance(received, HandlerMessage):
                    watch(received.content)
                    continue
                error, result = received
                index = indices.popleft()
                if not indices:
                    send_next(worker, indices)
                yield index, error, result
