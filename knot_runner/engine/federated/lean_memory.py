"""Anonymous memory that processes share: no name to clean up, no limit of /dev/shm, gone with its last process."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from math import prod
from multiprocessing import reduction
from typing import Any

import torch
from torch import Tensor

from knot_runner.engine.federated.cohort import ImageData

#: Tensors begin at multiples of so many bytes, as torch's own do.
ALIGNED = 64


class Memory:
    """``size`` bytes shared with every process that is started with this object among its arguments."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._descriptor = _new_file(size) if descriptor is None else descriptor
        self._map = mmap.mmap(self._descriptor, size)

    def tensor(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A view of the memory from byte ``start`` on; it keeps the memory alive."""
        if not prod(shape):
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=prod(shape), offset=start).view(shape)

    def close(self) -> None:
        """Give up the file descriptor; tensors stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __reduce__(self) -> tuple[Callable[..., Memory], tuple[Any, ...]]:
        return _attached, (self.size, reduction.DupFd(self._descriptor))


class SharedImages:
    """Several :class:`ImageData` copied into one shared memory; :meth:`images` gives them back in any process."""

    def __init__(self, *images: ImageData) -> None:
        tensors = [tensor for data in images for tensor in (data.pixels, data.labels, data.mean, data.std)]
        self._places: list[tuple[int, tuple[int, ...], torch.dtype]] = []
        end = 0
        for tensor in tensors:
            self._places.append((end, tuple(tensor.shape), tensor.dtype))
            end += aligned(tensor.numel() * tensor.element_size())
        self.memory = Memory(max(end, 1))
        for tensor, place in zip(tensors, self._places, strict=True):
            self.memory.tensor(*place).copy_(tensor)

    def images(self) -> list[ImageData]:
        """Views of what was given, in that order."""
        tensors = [self.memory.tensor(*place) for place in self._places]
        return [ImageData(*tensors[at : at + 4]) for at in range(0, len(tensors), 4)]


def aligned(size: int) -> int:
    """``size`` bytes rounded up to whole units of alignment."""
    return -(-size // ALIGNED) * ALIGNED


def _new_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("knot-runner")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _attached(size: int, duplicate: Any) -> Memory:
    return Memory(size, duplicate.detach())
