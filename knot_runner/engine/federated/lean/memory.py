"""Tensors and clients' data in memory that processes share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from knot_runner.engine.examples import ClientData
from knot_runner.engine.federated import flat
from knot_runner.engine.federated.cohort import ROWS_OF_MANY
from knot_runner.models.network import Network
from knot_runner.util.shared_memory import Memory, aligned
from knot_runner.util.workers import SharedArrays


def memory_view(memory: Memory, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of ``memory`` from byte ``start`` on; it keeps the memory mapped."""
    if not prod(shape):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(memory.map, dtype=dtype, count=prod(shape), offset=start).view(shape)


class SharedData:
    """Several :class:`ClientData` copied into one shared memory; :meth:`views` of them in any process."""

    def __init__(self, *data: ClientData) -> None:
        found = [one.tensors() for one in data]
        self._kinds = [(type(one), len(tensors)) for one, tensors in zip(data, found, strict=True)]
        self._arrays = SharedArrays([tensor.numpy() for tensors in found for tensor in tensors])
        self.memory = self._arrays.memory

    def expect(self, rows: Tensor) -> None:
        """The examples at ``rows`` [n] of the first data will be read soon."""
        self._arrays.expect(0, rows.numpy())

    def views(self) -> list[ClientData]:
        """The data on the shared memory, in the order given."""
        tensors = iter([torch.from_numpy(array) for array in self._arrays.arrays()])
        return [kind.of([next(tensors) for _ in range(count)]) for kind, count in self._kinds]


@dataclass(frozen=True)
class Slots:
    """Equal pieces of shared memory, each for a model (weights [P] then buffers [Q]), a vector [P], or logits.

    ``sizes``: (P, Q) of every network.
    """

    memory: Memory
    sizes: tuple[tuple[int, int], ...]
    dtype: torch.dtype
    stride: int

    @classmethod
    def make(cls, count: int, networks: Sequence[Network], dtype: torch.dtype) -> Slots:
        """``count`` slots that hold a model of any of ``networks`` or the logits of ROWS_OF_MANY examples."""
        layouts = [flat.layout_of(network) for network in networks]
        sizes = tuple((layout.size, layout.buffer_size) for layout in layouts)
        values = max(ROWS_OF_MANY * networks[0].classes, *map(sum, sizes))
        stride = aligned(values * dtype.itemsize)
        return cls(Memory(count * stride), sizes, dtype, stride)

    def model(self, slot: int, network: int = 0) -> tuple[Tensor, Tensor]:
        """(weights [P], buffers [Q]) of the network of that number."""
        parameters, buffers = self.sizes[network]
        both = memory_view(self.memory, slot * self.stride, (parameters + buffers,), self.dtype)
        return both[:parameters], both[parameters:]

    def logits(self, slot: int, rows: int, classes: int) -> Tensor:
        """[rows, classes]"""
        return memory_view(self.memory, slot * self.stride, (rows, classes), self.dtype)


class SlotAllocator:
    """Which slot holds which tensors, and how many orders read it: what requests of a call share is copied once.

    Tensors are identified by call and address: during a call its tensors neither change nor are freed.
    """

    def __init__(self, slots: Slots, numbers: Iterable[int]) -> None:
        self._slots, self._readers = slots, dict.fromkeys(numbers, 0)
        self._held: dict[tuple[object, ...], int] = {}

    def clear(self, call: object = None) -> None:
        """Forget the tensors of ``call``; slots that are still read stay until they are released."""
        self._held = {key: slot for key, slot in self._held.items() if key[0] is not call}

    def acquire(self, vector: Tensor, buffers: Tensor | None = None, call: object = None, network: int = 0) -> int:
        """A slot that holds ``vector`` [P] and ``buffers`` [Q] of the network of that number, to be released by
        :meth:`release`."""
        key = (call, *((t.data_ptr(), t.shape, t.stride()) for t in (vector, buffers) if t is not None))
        slot = self._held.pop(key, None)
        if slot is None:
            slot = self._free()
            for place, value in zip(self._slots.model(slot, network), (vector, buffers), strict=True):
                if value is not None:
                    place.copy_(value)
        self._held[key] = slot  # most recent: overwritten last
        self._readers[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """One reader of ``slot`` is done."""
        self._readers[slot] -= 1

    def _free(self) -> int:
        """The first empty slot; else, of those without readers, the one least recently acquired."""
        held = set(self._held.values())
        empty = [slot for slot, readers in self._readers.items() if not readers and slot not in held]
        if empty:
            return min(empty)
        key, slot = next((key, slot) for key, slot in self._held.items() if not self._readers[slot])
        del self._held[key]
        return slot
