"""Bytes in words, and freed memory given back to the system."""

from __future__ import annotations

import ctypes
import sys

UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


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
