"""The lean engine's pool of worker processes: callers queue requests, a thread per worker sends them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from knot_runner.engine.federated.cohort import Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean.client import MakeClient
from knot_runner.engine.federated.lean.worker import (
    Measures,
    Order,
    SharedData,
    SlotAllocator,
    Slots,
    packed,
    prepare_client,
)
from knot_runner.engine.federated.local import EngineRequest, Result
from knot_runner.models.network import Network
from knot_runner.util.workers import WorkerDied, WorkerProcess

#: Orders in flight per worker: the current one and, while the queue is long, the next, so that the worker does not wait
#: for the parent's threads, which share the GIL.
AHEAD = 2
#: Slow imports of a worker.
_PRELOADED = ["knot_runner.engine.federated.lean.worker"]


@dataclass(eq=False)
class Call:
    """The requests of one caller. ``done``: on the pool's lock, notified when none remains or one failed."""

    results: list[Result | None]
    remaining: int
    done: threading.Condition
    problem: BaseException | None = None


@dataclass(eq=False)
class PoolTask:
    """One request of a call; ``order`` once a worker has it."""

    call: Call
    index: int
    request: EngineRequest
    order: Order = field(init=False)


class LeanPool:
    """``workers`` processes with ``threads`` torch threads each, started at once and kept until :meth:`close`; every
    process trains any of ``networks``.

    Any number of threads may call :meth:`run` at once.
    """

    def __init__(
        self, networks: Sequence[Network], data: SharedData, dtype: torch.dtype, workers: int, threads: int,
        plugins: Sequence[str], make_client: MakeClient,
    ) -> None:  # fmt: skip
        self._classes = networks[0].classes
        # an order reads at most two slots (model, control) and has one of its worker's AHEAD for its result
        self._slots = Slots.make(3 * AHEAD * workers, networks, dtype)
        self._allocator = SlotAllocator(self._slots, range(AHEAD * workers, 3 * AHEAD * workers))
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[PoolTask] = deque()
        self._open: set[Call] = set()
        self._closed = False
        arguments = self._slots, data, networks, threads, plugins, make_client
        self._workers = [WorkerProcess(_PRELOADED, prepare_client, *arguments) for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        for number, worker in enumerate(self._workers):
            worker.start()
            slots = range(AHEAD * number, AHEAD * (number + 1))
            self._threads.append(threading.Thread(target=self._serve, args=(worker, slots), daemon=True))
            self._threads[-1].start()

    def run(self, requests: list[EngineRequest]) -> list[Result]:
        """Execute ``requests``, started in order after those of earlier calls; results in the same order.

        Raises :class:`UserError` when a worker died at one of them, and the error of a worker.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the engine is closed")
            call = Call([None] * len(requests), len(requests), threading.Condition(self._lock))
            self._open.add(call)
            self._waiting.extend(PoolTask(call, index, request) for index, request in enumerate(requests))
            self._work.notify(len(requests))
            try:
                call.done.wait_for(lambda: not call.remaining or call.problem)
                if call.problem:
                    raise call.problem
            except BaseException as problem:  # Ctrl-C, too: results in flight are not needed
                self._fail(call, problem)
                raise
            finally:
                self._open.remove(call)
                self._allocator.clear(call)
        return call.results

    def close(self) -> None:
        """Kill the workers. May be called again."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            for call in self._open:
                self._fail(call, RuntimeError("the engine is closed"))
        for worker in self._workers:
            worker.stop()
        for thread in self._threads:
            thread.join()
        self._slots.memory.close()

    def _serve(self, worker: WorkerProcess, slots: range) -> None:
        """Loop of a worker's thread. ``slots``: for results."""
        in_flight: deque[PoolTask] = deque()
        sent = 0
        while self._take(in_flight, slots):
            try:
                while sent < len(in_flight):
                    worker.send(in_flight[sent].order)
                    sent += 1
                error, measures = worker.receive()
            except (WorkerDied, OSError):  # OSError: the system has no room for another process
                sent = 0
                self._drop_failed(in_flight)
            else:
                sent -= 1
                self._finish(in_flight.popleft(), error, measures)
        worker.reap()

    def _take(self, in_flight: deque[PoolTask], slots: range) -> bool:
        """Wait until there is a task in flight; take another if the queue is long. False when the pool is closed."""
        with self._lock:
            while not self._closed and (not in_flight or self._plenty(in_flight)):
                if not self._waiting:
                    self._work.wait()
                    continue
                task = self._waiting.popleft()
                try:
                    task.order = self._order(task, min(set(slots) - {each.order.result for each in in_flight}))
                except Exception as problem:  # a vector of another length, say
                    self._fail(task.call, problem)
                else:
                    in_flight.append(task)
            return not self._closed

    def _plenty(self, in_flight: deque[PoolTask]) -> bool:
        """Whether a busy worker may take one more: the queue is long enough for all others, too.

        A program's tensors go through the pipe both ways, and neither end would read while it writes more than a pipe
        holds: such an order waits until the worker is idle.
        """
        if len(in_flight) >= AHEAD or len(self._waiting) <= len(self._workers):
            return False
        return not any(_has_program(task) for task in (*in_flight, self._waiting[0]))

    def _finish(self, task: PoolTask, problem: Exception | None, measures: Measures) -> None:
        try:
            result = None if problem else self._result(task, measures)
        except Exception as error:
            problem = error
        with self._lock:
            self._release(task)
            if problem:
                self._fail(task.call, problem)
                return
            task.call.results[task.index] = result
            task.call.remaining -= 1
            if not task.call.remaining:
                task.call.done.notify()

    def _drop_failed(self, in_flight: deque[PoolTask]) -> None:
        """After a death: fail the call of the current task; the next process repeats those of others."""
        with self._lock:
            if self._closed:
                return
            self._fail(in_flight[0].call, WorkerDied())
            for each in [each for each in in_flight if each.call.problem]:
                self._release(each)
                in_flight.remove(each)

    def _fail(self, call: Call, problem: BaseException) -> None:
        call.problem = call.problem or problem
        self._waiting = deque(task for task in self._waiting if task.call is not call)
        call.done.notify()

    def _order(self, task: PoolTask, result: int) -> Order:
        request, control = task.request, None
        whole = request.model if isinstance(request, Inference) else request.start
        model = self._allocator.acquire(whole.weights, whole.buffers, task.call, request.network)
        if isinstance(request, LocalTraining) and request.control is not None:
            try:
                control = self._allocator.acquire(request.control, None, task.call, request.network)
            except Exception:
                self._allocator.release(model)
                raise
        return Order(packed(request), model, control, result)

    def _release(self, task: PoolTask) -> None:
        for slot in (task.order.model, task.order.control):
            if slot is not None:
                self._allocator.release(slot)

    def _result(self, task: PoolTask, measures: Measures) -> Result:
        request, slot = task.request, task.order.result
        if isinstance(request, Inference):
            return self._slots.logits(slot, len(request.rows), self._classes).clone()
        weights, buffers = (value.clone() for value in self._slots.model(slot, request.network))
        *numbers, kept = measures
        return Trained(
            request.client, weights, buffers, *numbers, {name: torch.from_numpy(array) for name, array in kept.items()}
        )


def _has_program(task: PoolTask) -> bool:
    return isinstance(task.request, LocalTraining) and task.request.program is not None
