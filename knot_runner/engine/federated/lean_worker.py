"""A worker process of the lean engine: orders through a pipe, weights and results through shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Literal

import numpy as np
import torch

from knot_runner.engine.federated.cohort import Blueprint, Inference, LocalTraining, Recipe
from knot_runner.engine.federated.lean_client import TrainingClient, make_client
from knot_runner.engine.federated.lean_memory import SharedImages, Slots
from knot_runner.util.errors import UserError
from knot_runner.util.processes import die_with_parent, prepared

#: Slow imports of a worker.
_PRELOADED = ["knot_runner.engine.federated.lean_worker"]


@dataclass(frozen=True)
class Order:
    """A request whose tensors lie in slots, ``result`` the one to write; rows travel in the message itself."""

    model: int
    rows: np.ndarray
    result: int


@dataclass(frozen=True)
class TrainingOrder(Order):
    """See :class:`LocalTraining`."""

    client: int
    round: int
    seed: int
    test_rows: np.ndarray
    recipe: Recipe
    control: int | None


@dataclass(frozen=True)
class InferenceOrder(Order):
    """See :class:`Inference`."""

    split: Literal["test", "train"]


@dataclass(frozen=True)
class Reply:
    """``problem``: error text or None. Vectors or logits are in the order's result slot."""

    problem: str | None = None
    is_users: bool = False
    steps: int = 0
    loss: float = 0.0
    before: int = 0
    after: int = 0
    finite: bool = True


class LeanWorker:
    """A worker process, seen from the parent; one that died is followed by another when there is something to do.

    All but :meth:`end` are for the one thread that brings it orders.
    """

    def __init__(self, slots: Slots, images: SharedImages, blueprint: Blueprint, threads: int) -> None:
        self._arguments = slots, images, blueprint, threads
        self._lock, self._ended = threading.Lock(), False
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._sent = 0

    def begin(self) -> None:
        """Start the process. Raises OSError when the system has no room for it, EOFError after :meth:`end`."""
        with self._lock:
            if self._ended:
                raise EOFError("no worker is wanted any more")
            context = prepared(_PRELOADED)
            self._pipe, theirs = context.Pipe()
            process = context.Process(target=serve_lean, args=(theirs, *self._arguments), daemon=True)
            process.start()
            theirs.close()  # so that the worker's death ends our end
            self._process, self._sent = process, 0

    def exchange(self, orders: list[Order]) -> Reply:
        """The reply to the first of ``orders``; the worker then has the others. EOFError or OSError: it died."""
        if self._process is None:
            self.begin()
        for order in orders[self._sent :]:
            self._pipe.send(order)
            self._sent += 1
        reply = self._pipe.recv()
        self._sent -= 1
        return reply

    def reap(self) -> None:
        """Kill the process, if there is one, and free what it held."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
            self._pipe.close()
            with contextlib.suppress(ValueError):  # another thread that starts a process may have just reaped it
                process.close()

    def end(self) -> None:
        """Kill the process for good; its thread will hear of it."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def serve_lean(pipe: Connection, slots: Slots, images: SharedImages, blueprint: Blueprint, threads: int) -> None:
    """Life of a worker: carry out orders until the pipe closes or the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, and ends its workers itself
    die_with_parent()
    torch.set_num_threads(threads)
    _keep_freed_memory()
    client = make_client(blueprint, *images.images(), slots.dtype)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        try:
            reply = _execute(order, client, slots)
        except UserError as problem:
            reply = Reply(str(problem), is_users=True)
        except Exception:  # whatever it is, the parent must hear of it
            reply = Reply(traceback.format_exc())
        pipe.send(reply)


def _execute(order: Order, client: TrainingClient, slots: Slots) -> Reply:
    weights, buffers = slots.model(order.model)
    rows = torch.from_numpy(order.rows)
    if isinstance(order, InferenceOrder):
        found = client.infer(Inference(weights, buffers, rows, order.split))
        slots.logits(order.result, *found.shape).copy_(found)
        return Reply()
    control = None if order.control is None else slots.model(order.control)[0]
    test_rows = torch.from_numpy(order.test_rows)
    request = LocalTraining(
        order.client, order.round, order.seed, weights, buffers, rows, test_rows, order.recipe, control
    )
    results = slots.model(order.result)
    trained = client.train_client(request, results[0])
    for slot, value in zip(results, (trained.weights, trained.buffers), strict=True):
        if value.data_ptr() != slot.data_ptr():
            slot.copy_(value)
    return Reply(None, False, trained.steps, trained.loss, trained.before, trained.after, trained.finite)


def _keep_freed_memory() -> None:
    """Make glibc reuse freed memory: returning megabytes to the system at every step costs a tenth of the time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                mallopt(option, 1 << 30)
