"""Every setting of a composed config, and the config with another value of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def leaves(config: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting; a preset's grid and report are one each."""
    for key, value in config.items():
        whole = f"{above}{key}"
        if isinstance(value, dict) and value and whole not in ("report", "sweep"):
            yield from leaves(value, f"{whole}.")
        else:
            yield whole, value


def other(value: Any) -> Any:
    """Another value, of the same type where it has one. The id is asked for, not whether the value can be meant."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return [*value, "x"] if isinstance(value, list) else {"x": 1}


def replaced(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """``config`` with another value at the dotted ``key``."""
    first, _, rest = key.partition(".")
    return {**config, first: replaced(config[first], rest, value) if rest else value}
