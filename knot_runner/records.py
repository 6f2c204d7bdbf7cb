"""A run's result carries its own digest, so that a damaged one is recomputed or named, never believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knot_runner.files import read_json, write_json
from knot_runner.strict import digest

NAME = "result.json"


def write_result(folder: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Write ``result.json`` with its digest; returns what was written."""
    sealed = {**result, "digest": digest(result, 64)}
    write_json(folder / NAME, sealed)
    return sealed


def read_result(folder: Path) -> dict[str, Any] | None:
    """The finished run's result; None when there is none or it is damaged."""
    result = read_json(folder / NAME)
    return result if isinstance(result, dict) and intact(result) else None


def lock_of(out: str, run_id: str) -> Path:
    """The lock of a run below ``out``: beside all runs and not in its folder, which may be set aside."""
    return Path(out) / ".locks" / run_id


def clear_states(folder: Path) -> None:
    """Delete what an interrupted run goes on from: the run is finished, and its result stands. The log stays."""
    for name in ("commit.json", "state-0.safetensors", "state-1.safetensors"):
        (folder / name).unlink(missing_ok=True)


def intact(result: dict[str, Any]) -> bool:
    """Whether the content is what was written."""
    rest = {key: value for key, value in result.items() if key != "digest"}
    try:
        return result.get("digest") == digest(rest, 64)
    except ValueError:  # NaN: nothing we write
        return False
