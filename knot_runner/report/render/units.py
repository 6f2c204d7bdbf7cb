"""Large amounts with decimal prefixes: bytes and FLOPs."""

from __future__ import annotations

#: Prefixes in steps of 1000.
PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def prefix_of(largest: float) -> tuple[str, float]:
    """(prefix, factor) that print amounts up to ``largest`` with one to three digits before the point."""
    step = 0
    while abs(largest) >= 1000 ** (step + 1) and step + 1 < len(PREFIXES):
        step += 1
    return PREFIXES[step], 1000.0**step


def quantity(amount: float, unit: str) -> str:
    """``amount`` with three digits and a prefix: ``12.4 MB``, ``340 B``."""
    prefix, factor = prefix_of(amount)
    value = amount / factor
    if f"{value:.3g}" == "1e+03" and prefix != PREFIXES[-1]:  # 999.9 rounds to a thousand
        return quantity(1000 * factor, unit)
    return f"{value:.3g} {prefix}{unit}"
