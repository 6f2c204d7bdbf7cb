"""Converts results of earlier versions to the current form."""

from __future__ import annotations

from typing import Any

from knot_runner.metrics import ROUNDS_COUNT
from knot_runner.report.records.schema import is_count


def rounds_trained(result: Any) -> Any:
    """``result`` with ``rounds_to_target`` and ``best.round`` as rounds trained, also if it is a federated one of an
    earlier version, which counts from 0 (without ``rounds_count``). Invalid results are unchanged and fail their check
    later."""
    if not isinstance(result, dict) or result.get("kind") != "federated" or "rounds_count" in result:
        return result
    made = {**result, "rounds_count": ROUNDS_COUNT}
    if is_count(result.get("rounds_to_target")):
        made["rounds_to_target"] += 1
    best = result.get("best")
    if isinstance(best, dict) and is_count(best.get("round")):
        made["best"] = {**best, "round": best["round"] + 1}
    return made
