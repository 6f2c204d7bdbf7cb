"""The lean engine's worker processes, seen from the parent: dealing requests, lending slots, noticing deaths."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import Blueprint, Inference, LocalTraining, Trained
from knot_runner.engine.federated.lean_memory import SharedImages
from knot_runner.engine.federated.lean_worker import InferenceOrder, Order, Reply, Slots, TrainingOrder, serve
from knot_runner.errors import UserError

Request = LocalTraining | Inference
Result = Trained | Tensor

_DIED = (
    "hardware.workers: a worker process died (out of memory?); repeat the command to go on, "
    "with hardware.workers=1 if it dies again"
)


class Pool:
    """``workers`` processes with ``threads`` torch threads each, started at once and kept until :meth:`close`."""

    def __init__(
        self, blueprint: Blueprint, images: SharedImages, dtype: torch.dtype, workers: int, threads: int
    ) -> None:
        self._classes = blueprint.classes
        # a worker at work reads at most two slots (model, control) and writes into its own two in turn, so that it can
        # begin the next order while a result is read
        self._slots = Slots.make(4 * workers, blueprint, dtype)
        self._shelf = Shelf(self._slots, range(2 * workers, 4 * workers))
        self._turns = [0] * workers
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        for _ in range(workers):
            ours, theirs = context.Pipe()
            arguments = (theirs, self._slots, images, blueprint, threads)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that a worker's death ends our end
            self._processes.append(process)
            self._pipes.append(ours)

    def run(self, requests: list[Request], done: Callable[[int, Result], None]) -> None:
        """Carry out ``requests``, each begun in its turn by a free worker; ``done(index, result)`` as they end.

        Raises :class:`UserError` when a worker process died. After an exception the pool is closed.
        """
        if not self._pipes:
            raise RuntimeError("the worker processes have ended")
        try:
            self._deal(requests, done)
        except (EOFError, ConnectionError):
            self.close()
            raise UserError(_DIED) from None
        except BaseException:  # Ctrl-C, or a worker's exception: nobody will use what is under way
            self.close()
            raise

    def close(self) -> None:
        """Kill the workers; twice does no harm."""
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            process.close()
            pipe.close()
        self._processes, self._pipes = [], []
        self._slots.memory.close()

    def _deal(self, requests: list[Request], done: Callable[[int, Result], None]) -> None:
        self._shelf.clear()
        waiting = deque(enumerate(requests))
        under_way: dict[int, tuple[int, Order]] = {}

        def begin(worker: int) -> None:
            if waiting:
                index, request = waiting.popleft()
                order = self._order(request, worker)
                self._pipes[worker].send(order)
                under_way[worker] = index, order

        for worker in range(len(self._pipes)):
            begin(worker)
        while under_way:
            for pipe in multiprocessing.connection.wait([self._pipes[worker] for worker in under_way]):
                worker = self._pipes.index(pipe)
                index, order = under_way.pop(worker)
                reply = pipe.recv()
                self._shelf.give_back(order.model)
                if isinstance(order, TrainingOrder) and order.control is not None:
                    self._shelf.give_back(order.control)
                begin(worker)
                done(index, self._result(requests[index], reply, order.result))

    def _order(self, request: Request, worker: int) -> Order:
        self._turns[worker] ^= 1
        result = 2 * worker + self._turns[worker]
        model, rows = self._shelf.lend(request.weights, request.buffers), request.rows.numpy()
        if isinstance(request, Inference):
            return InferenceOrder(model, rows, result, request.split)
        control = None if request.control is None else self._shelf.lend(request.control)
        test_rows = request.test_rows.numpy()
        return TrainingOrder(
            model, rows, result, request.client, request.round, request.seed, test_rows, request.recipe, control
        )

    def _result(self, request: Request, reply: Reply, slot: int) -> Result:
        if reply.problem is not None:
            raise UserError(reply.problem) if reply.is_users else RuntimeError(f"in a worker process: {reply.problem}")
        if isinstance(request, Inference):
            return self._slots.logits(slot, len(request.rows), self._classes).clone()
        weights, buffers = (value.clone() for value in self._slots.model(slot))
        return Trained(request.client, weights, buffers, reply.steps, reply.loss, reply.before, reply.after)


class Shelf:
    """Which slot holds which tensors, and how many workers read it: what requests share is written once."""

    def __init__(self, slots: Slots, numbers: Iterable[int]) -> None:
        self._slots, self._readers = slots, dict.fromkeys(numbers, 0)
        self._held: dict[tuple[object, ...], int] = {}

    def clear(self) -> None:
        """Forget contents and readers (between two calls, tensors may have changed)."""
        self._held = {}
        self._readers = dict.fromkeys(self._readers, 0)

    def lend(self, vector: Tensor, buffers: Tensor | None = None) -> int:
        """The number of a slot with ``vector`` [P] and ``buffers`` [Q]; to be given back."""
        key = tuple((t.data_ptr(), t.stride()) for t in (vector, buffers) if t is not None)
        slot = self._held.pop(key, None)
        if slot is None:
            slot = self._free()
            for place, value in zip(self._slots.model(slot), (vector, buffers), strict=True):
                if value is not None:
                    place.copy_(value)
        self._held[key] = slot  # now the last in order, so the last to be overwritten
        self._readers[slot] += 1
        return slot

    def give_back(self, slot: int) -> None:
        """One reader fewer."""
        self._readers[slot] -= 1

    def _free(self) -> int:
        """An empty slot, or the one without readers that was lent longest ago."""
        empty = self._readers.keys() - set(self._held.values())
        if empty:
            return min(empty)
        key, slot = next((key, slot) for key, slot in self._held.items() if not self._readers[slot])
        del self._held[key]
        return slot
