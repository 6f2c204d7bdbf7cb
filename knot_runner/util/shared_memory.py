"""Memory that processes share."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

#: Arrays in shared memory begin at multiples of so many bytes, as torch's and numpy's own do.
ALIGNED = 64


class Memory:
    """``size`` bytes shared with every process that is started with this object among its arguments.

    Anonymous: no name to clean up, no limit of /dev/shm, gone with its last process. ``map`` is the bytes.
    """

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = size
        self._descriptor = _new_file(size) if descriptor is None else descriptor
        self.map = mmap.mmap(self._descriptor, size)

    def close(self) -> None:
        """Close the file descriptor; views of the bytes stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __reduce__(self) -> tuple[Callable[..., Memory], tuple[Any, ...]]:
        return _attached, (self.size, reduction.DupFd(self._descriptor))


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
