"""Bytes in words."""

from __future__ import annotations

UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def size_text(size: float) -> str:
    """``3.1 GB``: bytes in words."""
    unit = 0
    while size >= 1000 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {UNITS[unit]}" if unit == 0 else f"{size:,.1f} {UNITS[unit]}"
