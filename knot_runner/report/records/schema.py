"""Validates records: a ``result.json`` must be of the run in its folder, and every number in it must be possible."""

from __future__ import annotations

import math
from typing import Any

from knot_runner.config.settings.families import family_of_result
from knot_runner.results import kind_problem


def is_number(value: Any, top: float = math.inf) -> bool:
    """Whether ``value`` is a finite number from 0 to ``top``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= top and value < math.inf


def result_problem(result: Any, task: str, method: str, seed: int) -> str:
    """Why ``result`` is invalid for this task, method and seed; "" if it is valid."""
    if not isinstance(result, dict) or result.get("status") not in ("done", "diverged"):
        return "has no status done or diverged"
    for key, expected in (("task", task), ("method", method), ("seed", seed)):
        if result.get(key) != expected:
            return f"is of another run ({key} {result.get(key)!r} instead of {expected!r})"
    if family_of_result(result) is None:
        return f"is of no known kind ({result['kind']!r})"
    problem = kind_problem(result)
    return f"cannot be believed ({problem})" if problem else ""
