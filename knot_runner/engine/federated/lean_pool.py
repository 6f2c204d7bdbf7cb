"""The lean engine's worker processes, seen from the parent: callers queue requests, a thread per worker brings them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import Blueprint, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean_memory import SharedImages, SlotAllocator, Slots
from knot_runner.engine.federated.lean_worker import InferenceOrder, LeanWorker, Order, Reply, TrainingOrder
from knot_runner.util.errors import UserError
from knot_runner.util.processes import Ended

EngineRequest = LocalTraining | Inference
Result = Trained | Tensor

#: Orders a worker holds at most: the one it is at and, while there is plenty to do, the next, so that it need not wait
#: for the parent, whose threads take turns at Python.
AHEAD = 2

_DIED = (
    "hardware.workers: a worker process died (out of memory?); repeat the command to go on, "
    "with hardware.workers=1 if it dies again"
)
_ENDED = "the worker processes have ended"


@dataclass(eq=False)
class Call:
    """What one caller waits for. ``over``: on the pool's lock, notified when nothing is left or something failed."""

    number: int
    results: list[Result | None]
    left: int
    over: threading.Condition
    problem: BaseException | None = None


@dataclass(eq=False)
class PoolTask:
    """One request of a call; ``order`` once it was given to a worker, ``deaths`` of workers that were at it."""

    call: Call
    index: int
    request: EngineRequest
    order: Order = field(init=False)
    deaths: int = 0


class LeanPool:
    """``workers`` processes with ``threads`` torch threads each, started at once and kept until :meth:`close`.

    Any number of threads may call :meth:`run` at once. ``lives``: how many workers may die at a request before its
    caller gets a :class:`UserError`; each is followed by a new one, said through ``say``.
    """

    def __init__(
        self, blueprint: Blueprint, images: SharedImages, dtype: torch.dtype, workers: int, threads: int,
        lives: int, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._classes, self._lives, self._say = blueprint.classes, lives, say
        # an order reads at most two slots (model, control) and has one of its worker's AHEAD for its result
        self._slots = Slots.make(3 * AHEAD * workers, blueprint, dtype)
        self._shelf = SlotAllocator(self._slots, range(AHEAD * workers, 3 * AHEAD * workers))
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._waiting: deque[PoolTask] = deque()
        self._open: set[Call] = set()
        self._calls, self._closed = 0, False
        self._workers = [LeanWorker(self._slots, images, blueprint, threads) for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        for number, worker in enumerate(self._workers):
            worker.begin()
            slots = list(range(AHEAD * number, AHEAD * (number + 1)))
            self._threads.append(threading.Thread(target=self._attend, args=(worker, slots), daemon=True))
            self._threads[-1].start()

    def run(self, requests: list[EngineRequest]) -> list[Result]:
        """Carry out ``requests``, begun in their order, after those of earlier calls; results in the same order.

        Raises :class:`UserError` when workers died at one of them, what a worker raised, and :class:`Ended`. Whatever
        is raised, other calls go on.
        """
        with self._lock:
            if self._closed:
                raise Ended(_ENDED)
            self._calls += 1
            call = Call(self._calls, [None] * len(requests), len(requests), threading.Condition(self._lock))
            self._open.add(call)
            self._waiting.extend(PoolTask(call, index, request) for index, request in enumerate(requests))
            self._work.notify(len(requests))
            try:
                call.over.wait_for(lambda: not call.left or call.problem)
                if call.problem:
                    raise call.problem
            except BaseException as problem:  # Ctrl-C, too: nobody will use what is under way
                self._fail(call, problem)
                raise
            finally:
                self._open.remove(call)
                self._shelf.clear(call.number)
        return call.results

    def close(self) -> None:
        """Kill the workers; twice does no harm. Callers that wait get :class:`Ended`."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
            for call in self._open:
                self._fail(call, Ended(_ENDED))
        for worker in self._workers:
            worker.end()
        for thread in self._threads:
            thread.join()
        self._slots.memory.close()

    def _attend(self, worker: LeanWorker, slots: list[int]) -> None:
        """The life of a worker's thread. ``slots``: for results."""
        under_way: deque[PoolTask] = deque()
        while self._take(under_way, slots):
            try:
                reply = worker.exchange([task.order for task in under_way])
            except (EOFError, OSError):
                self._bury(worker, under_way)
            else:
                self._finish(under_way.popleft(), reply)
        worker.bury()

    def _take(self, under_way: deque[PoolTask], slots: list[int]) -> bool:
        """Wait for something to do, unless there is, and take it. False when the pool is closed."""
        with self._lock:
            while not self._closed and (not under_way or self._plenty(under_way)):
                if not self._waiting:
                    self._work.wait()
                    continue
                task = self._waiting.popleft()
                try:
                    task.order = self._order(task, min(set(slots) - {each.order.result for each in under_way}))
                except Exception as problem:  # a vector of another length, say
                    self._fail(task.call, problem)
                else:
                    under_way.append(task)
            return not self._closed

    def _plenty(self, under_way: deque[PoolTask]) -> bool:
        """Whether a worker may have one more although it has something to do: there is enough for all others, too."""
        return len(under_way) < AHEAD and len(self._waiting) > len(self._workers)

    def _finish(self, task: PoolTask, reply: Reply) -> None:
        try:
            result = self._result(task.request, reply, task.order.result)
        except Exception as problem:
            result = problem
        with self._lock:
            self._give_back(task)
            if isinstance(result, Exception):
                self._fail(task.call, result)
            else:
                task.call.results[task.index] = result
                task.call.left -= 1
                if not task.call.left:
                    task.call.over.notify()

    def _bury(self, worker: LeanWorker, under_way: deque[PoolTask]) -> None:
        """Have what a dead worker was at repeated, unless too many died at it; the next one begins with the rest."""
        worker.bury()
        with self._lock:
            if self._closed:
                return
            task = under_way[0]
            task.deaths += 1
            if task.deaths >= self._lives:
                self._fail(task.call, UserError(_DIED))
            for each in [each for each in under_way if each.call.problem]:
                self._give_back(each)
                under_way.remove(each)
        if under_way:
            self._say("hardware.workers: a worker process died (out of memory?); another one repeats what it was at")

    def _fail(self, call: Call, problem: BaseException) -> None:
        call.problem = call.problem or problem
        self._waiting = deque(task for task in self._waiting if task.call is not call)
        call.over.notify()

    def _give_back(self, task: PoolTask) -> None:
        self._shelf.give_back(task.order.model)
        if isinstance(task.order, TrainingOrder) and task.order.control is not None:
            self._shelf.give_back(task.order.control)

    def _order(self, task: PoolTask, result: int) -> Order:
        request, call = task.request, task.call.number
        model, rows = self._shelf.lend(request.weights, request.buffers, call), request.rows.numpy()
        if isinstance(request, Inference):
            return InferenceOrder(model, rows, result, request.split)
        control = None
        if request.control is not None:
            try:
                control = self._shelf.lend(request.control, None, call)
            except Exception:
                self._shelf.give_back(model)
                raise
        test_rows = request.test_rows.numpy()
        return TrainingOrder(
            model, rows, result, request.client, request.round, request.seed, test_rows, request.recipe, control
        )

    def _result(self, request: EngineRequest, reply: Reply, slot: int) -> Result:
        if reply.problem is not None:
            raise UserError(reply.problem) if reply.is_users else RuntimeError(f"in a worker process: {reply.problem}")
        if isinstance(request, Inference):
            return self._slots.logits(slot, len(request.rows), self._classes).clone()
        weights, buffers = (value.clone() for value in self._slots.model(slot))
        return Trained(
            request.client, weights, buffers, reply.steps, reply.loss, reply.before, reply.after, reply.finite
        )
