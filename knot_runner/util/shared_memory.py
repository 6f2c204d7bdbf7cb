"""Memory that several processes share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

#: Arrays in shared memory begin at multiples of this many bytes, like arrays of torch and numpy.
ALIGNED = 64


class Memory:
    """A block of memory that several processes share.

    Every process that is started with this object as an argument can access the block. The block is freed when the last
    process that uses it ends. If the argument ``private`` is true, changes of the bytes are visible only in the process
    that makes them.

    Attributes:
        size: Size in bytes.
        map: The bytes.
    """

    def __init__(self, size: int, descriptor: int | None = None, private: bool = False) -> None:
        self.size = size
        self._private = private
        self._descriptor = _new_file(size) if descriptor is None else descriptor
        self.map = mmap.mmap(self._descriptor, size, access=mmap.ACCESS_COPY if private else mmap.ACCESS_WRITE)

    def close(self) -> None:
        """Close the file descriptor of the block. Existing views of the bytes stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __reduce__(self) -> tuple[Callable[..., Memory], tuple[Any, ...]]:
        return _attached, (self.size, reduction.DupFd(self._descriptor), self._private)


#: Files that this process has mapped, by the address of the first byte. Arrays in mapped files are not copied for
#: worker processes.
_FILES: dict[int, Memory] = {}


def map_file(path: Path) -> Memory:
    """Return the content of the file ``path`` as mapped memory. The operating system reads the file on demand.

    Raises:
        OSError: The file cannot be read.
    """
    import numpy as np

    with path.open("rb") as file:
        memory = Memory(os.fstat(file.fileno()).st_size, os.dup(file.fileno()), private=True)
    _FILES[np.frombuffer(memory.map, np.uint8).ctypes.data] = memory
    return memory


def place_in_file(array: np.ndarray) -> tuple[Memory, int] | None:
    """Return the place of ``array``: a mapped file and the offset in it; None if no mapped file contains ``array``."""
    at = array.ctypes.data
    for start, memory in list(_FILES.items()):
        if start <= at and at + array.nbytes <= start + memory.size and array.flags.c_contiguous:
            return memory, at - start
    return None


def aligned(size: int) -> int:
    """Return ``size``, a number of bytes, rounded up to a multiple of :data:`ALIGNED`."""
    return -(-size // ALIGNED) * ALIGNED


def _new_file(size: int) -> int:
    # An anonymous file has no name to clean up, and its size is not limited by /dev/shm.
    descriptor = os.memfd_create("knot-runner")
    os.ftruncate(descriptor, size)
    return descriptor


def _attached(size: int, duplicate: Any, private: bool) -> Memory:
    return Memory(size, duplicate.detach(), private)


# ------------------------------------------------------------------------------------------------------------ memory


UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def size_text(size: float) -> str:
    """Return a number of bytes as text, such as ``3.1 GB``."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size = size / 1000
        unit = unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:,.1f} {UNITS[unit]}"
