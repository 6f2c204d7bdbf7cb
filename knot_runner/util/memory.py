"""This machine's memory, so that a setting that cannot fit is refused by name before a run starts."""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from pathlib import Path

from knot_runner.util.errors import UserError

#: Where Linux says how much memory there is, and how much of it a container may have (cgroups 2 and 1).
MEMINFO = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def machine_memory() -> float:
    """Returns the total memory of this machine or container in bytes; infinite where unknown.

    Total and not free memory, so that the outcome of a command does not depend on other processes.
    """
    total = read_kilobytes(MEMINFO, "MemTotal:")
    return min([math.inf if total is None else total, *(_limit(path) for path in LIMITS)])


def read_kilobytes(path: Path, name: str) -> int | None:
    """Returns the value of line ``name`` in a file of ``/proc``, in bytes; None where there is none."""
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def require_memory(needed: float, key: str, what: str) -> None:
    """Raises :class:`UserError` naming ``key`` where ``what`` takes at least ``needed`` bytes, more than the machine
    has.

    ``needed`` is a lower bound (what must be held at once), so nothing that could run is refused.
    """
    has = machine_memory()
    if needed > has:
        raise UserError(
            f"{key}: {what} would need at least {size_text(needed)} of memory; this machine has {size_text(has)}"
        )


def give_back_freed() -> None:
    """Return memory that was freed to the system, where the C library is glibc.

    Thousands of short-lived models, copied by several threads, fragment the heap, and the process grows though it holds
    no more than before.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
        if trim is not None:
            trim(0)


def size_text(size: float) -> str:
    """``3.1 GB``: bytes in words."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:,.1f} {UNITS[unit]}"


def _limit(path: Path) -> float:
    try:
        return float(path.read_text(encoding="ascii"))  # cgroups 2 have "max" for no limit
    except (OSError, ValueError):
        return math.inf
