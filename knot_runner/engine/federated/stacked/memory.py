"""How many clients fit into a stack: bytes per client, and bytes that are free."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from knot_runner.engine.examples import ImageData
from knot_runner.engine.federated.stacked.plan import Structure, width
from knot_runner.engine.federated.stacked.program import Program
from knot_runner.models.network import Network

#: Share of the free memory that a stack may take. A GPU is ours, but allocators leave gaps and kernels need workspace;
#: RAM is everybody's.
SHARE = {"cuda": 0.8, "cpu": 0.5}


def client_bytes(network: Network, data: ImageData, structure: Structure, dtype: torch.dtype) -> int:
    """Peak bytes of one client in a stack: its state, and the tensors of a step.

    Counted on the program itself, as half of a step of two clients whose tensors have no memory. For other objectives,
    whose loss may not run without real values, the step is counted with cross-entropy.
    """
    structure = replace(structure, objective=None)
    images = ImageData(*(each.to("meta") for each in (data.pixels, data.labels, data.mean, data.std)))
    with _Tally() as tally:
        program = Program(network, images, structure, 2, dtype, autocast=False, shrinks=True)
        for trains in structure.trains:
            program.step(2, trains)
    return -(-tally.peak // 2)


class _Tally(TorchDispatchMode):
    """Counts the bytes of live tensors made inside the block; ``peak``: their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor):
                self._count(each.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self._alive:
            self._alive.add(place)
            self._now += size
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._freed, place, size)

    def _freed(self, place: int, size: int) -> None:
        self._alive.discard(place)
        self._now -= size


def free_bytes(device: torch.device) -> float:
    """Bytes that stacks on ``device`` may use of those free now; infinite where unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return (torch.cuda.mem_get_info(device)[0] + unused) * SHARE["cuda"]
    return available(Path("/proc/meminfo")) * SHARE["cpu"]


def available(meminfo: Path) -> float:
    """Available bytes of RAM, from Linux's ``/proc/meminfo``; infinite where it has no such entry."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), math.inf)


def narrowed(clients: int) -> int:
    """The widest stack of at most ``clients`` (at least 1) that a program makes, see :func:`plan.width`."""
    while clients > 1 and width(clients) > clients:
        clients -= 1
    return max(clients, 1)


def out_of_memory(problem: BaseException | None) -> bool:
    """Returns whether ``problem`` is, or was caused by, exhausted CUDA memory (the end of a graph's capture may hide
    it)."""
    while problem is not None:
        if isinstance(problem, torch.OutOfMemoryError):
            return True
        problem = problem.__cause__ or problem.__context__
    return False
