"""Whether a ``result.json`` can be believed: it is that of the run it lies with, and every number in it can be one."""

from __future__ import annotations

import math
from typing import Any

#: Largest value each metric can take.
TOP = {"f1": 1.0, "accuracy": 1.0, "sd": math.inf}


def problem(result: Any, task: str, method: str, seed: int) -> str:
    """What is wrong with ``result`` as that of this task, method and seed; "" when nothing is."""
    if not isinstance(result, dict) or result.get("status") not in ("done", "diverged"):
        return "has no status done or diverged"
    for key, asked in (("task", task), ("method", method), ("seed", seed)):
        if result.get(key) != asked:
            return f"is of another run ({key} {result.get(key)!r} instead of {asked!r})"
    if result["status"] == "diverged":
        return ""
    checks = {"metrics": _scores, "datasets": _sizes, "labels": _labels}
    optional = {"before": _scores, "teachers": _teachers, "bias": _bias}
    for key, is_sound in checks.items():
        if not result.get(key) or not is_sound(result[key], result):
            return f"holds no sound {key!r}"
    for key, is_sound in optional.items():
        if key in result and not is_sound(result[key], result):
            return f"holds no sound {key!r}"
    return ""


def _number(value: Any, top: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= top and value < math.inf


def _rows(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(row, dict) for row in value.values())


def _scores(value: Any, _: dict[str, Any]) -> bool:
    return _rows(value) and all(
        _number(score, TOP[metric]) for metric, row in value.items() if metric in TOP for score in row.values()
    )


def _teachers(value: Any, _: dict[str, Any]) -> bool:
    return _rows(value) and all(
        _number(score, TOP[metric]) for row in value.values() for metric, score in row.items() if metric in TOP
    )


def _sizes(value: Any, _: dict[str, Any]) -> bool:
    return _rows(value) and all(
        _number(row[part]) for row in value.values() for part in ("train", "valid", "test") if row.get(part) is not None
    )


def _labels(value: Any, _: dict[str, Any]) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("names"), list):
        return False
    points = value.get("coordinates")
    if not isinstance(points, list) or len(points) != len(value["names"]) or len(points) < 2:
        return False
    alike = all(isinstance(point, list) and len(point) == len(points[0]) for point in points)
    return alike and all(isinstance(x, int | float) and math.isfinite(x) for point in points for x in point)


def _bias(value: Any, result: dict[str, Any]) -> bool:
    classes = len(result["labels"]["names"])
    return isinstance(value, dict) and all(
        isinstance(row, list) and len(row) == classes and all(_number(share) for share in row) and sum(row) > 0
        for row in value.values()
    )
