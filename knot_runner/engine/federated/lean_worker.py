"""A worker process of the lean engine: orders come by pipe, weights and results through shared memory."""

from __future__ import annotations

import ctypes
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import INFERENCE_ROWS, Blueprint, Inference, LocalTraining, Recipe
from knot_runner.engine.federated.lean_client import Client, make_client
from knot_runner.engine.federated.lean_memory import SharedImages, view
from knot_runner.errors import UserError
from knot_runner.processes import Memory, aligned, die_with_parent


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
    """``problem``: what went wrong, or None. Vectors or logits lie in the order's result slot."""

    problem: str | None = None
    is_users: bool = False
    steps: int = 0
    loss: float = 0.0
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class Slots:
    """Equal pieces of shared memory, each for a model (weights [P] then buffers [Q]), a vector [P], or logits."""

    memory: Memory
    parameters: int
    buffers: int
    dtype: torch.dtype
    stride: int

    @classmethod
    def make(cls, count: int, blueprint: Blueprint, dtype: torch.dtype) -> Slots:
        """``count`` slots that hold a model of ``blueprint`` or the logits of INFERENCE_ROWS images."""
        layout = flat.layout_of(blueprint)
        values = max(layout.size + layout.buffer_size, INFERENCE_ROWS * blueprint.classes)
        stride = aligned(values * dtype.itemsize)
        return cls(Memory(count * stride), layout.size, layout.buffer_size, dtype, stride)

    def model(self, slot: int) -> tuple[Tensor, Tensor]:
        """(weights [P], buffers [Q])"""
        both = view(self.memory, slot * self.stride, (self.parameters + self.buffers,), self.dtype)
        return both[: self.parameters], both[self.parameters :]

    def logits(self, slot: int, rows: int, classes: int) -> Tensor:
        """[rows, classes]"""
        return view(self.memory, slot * self.stride, (rows, classes), self.dtype)


def serve(pipe: Connection, slots: Slots, images: SharedImages, blueprint: Blueprint, threads: int) -> None:
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
            reply = _carry_out(order, client, slots)
        except UserError as problem:
            reply = Reply(str(problem), is_users=True)
        except Exception:  # whatever it is, the parent must hear of it
            reply = Reply(traceback.format_exc())
        pipe.send(reply)


def _carry_out(order: Order, client: Client, slots: Slots) -> Reply:
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
    return Reply(None, False, trained.steps, trained.loss, trained.before, trained.after)


def _keep_freed_memory() -> None:
    """Have glibc reuse freed memory: handing megabytes back to the system at every step costs a tenth of the time."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
        if mallopt is not None:
            for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
                mallopt(option, 1 << 30)
