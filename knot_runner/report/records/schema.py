"""Whether records can be believed: a ``result.json`` is that of the run it lies with, and every number in it and in a
row of ``rounds.jsonl`` can be one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from knot_runner.config.settings.families import family_of_result
from knot_runner.metrics import METRICS
from knot_runner.results import kind_problem
from knot_runner.results.costs import BYTES, FLOPS

#: Of a row of a round of a fleet: counts, and what else is a number of 0 or more.
FLEET_COUNTS, FLEET = ("dropped", "late", "partial"), ("clock", "dropped", "late", "partial", "staleness")
#: Of a row of a round in which a server distilled.
DISTILLED = ("distil_loss", "distil_steps", "distil_tested", "distil_before", "distil_after")


def is_number(value: Any, top: float = math.inf) -> bool:
    """A finite number from 0 to ``top``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= top and value < math.inf


def is_count(value: Any, least: int = 0) -> bool:
    """A whole number of at least ``least``."""
    return isinstance(value, int) and is_number(value) and value >= least


def result_problem(result: Any, task: str, method: str, seed: int) -> str:
    """What is wrong with ``result`` as that of this task, method and seed; "" when nothing is."""
    if not isinstance(result, dict) or result.get("status") not in ("done", "diverged"):
        return "has no status done or diverged"
    for key, asked in (("task", task), ("method", method), ("seed", seed)):
        if result.get(key) != asked:
            return f"is of another run ({key} {result.get(key)!r} instead of {asked!r})"
    if family_of_result(result) is None:
        return f"is of no known kind ({result['kind']!r})"
    problem = kind_problem(result)
    return f"cannot be believed ({problem})" if problem else ""


def is_round(row: Any, number: int) -> bool:
    """Whether ``row`` of ``rounds.jsonl`` is that of round ``number`` of a federated run and holds no impossible value.

    Rows of rounds that were not measured have neither accuracy nor losses; the others have all of them.
    """
    if not isinstance(row, dict) or row.get("round") != number:
        return False
    measures = ("accuracy", "f1", "loss", "tempered_loss", "clients")
    if any(key in row for key in measures) and not all(key in row for key in measures):
        return False
    tops = {key: metric.top for key, metric in METRICS.items() if key != "client_accuracy"}
    if not all(is_number(row[key], top) for key, top in tops.items() if key in row):
        return False
    if not _is_distilled(row) or not _has_possible_costs(row) or not _is_of_fleet(row):
        return False
    takers = row.get("participants")
    if not _is_private(row):
        return False
    if not _is_list(takers, lambda client: isinstance(client, int) and client >= 0):
        return False
    before_and_after = all(_is_list(row.get(key), _share, len(takers)) for key in ("before", "after"))
    return before_and_after and ("clients" not in row or _is_list(row["clients"], _share))


def _is_distilled(row: dict[str, Any]) -> bool:
    """Whether what ``row`` says of a server's distillation can be: loss and steps, and accuracies before and after it
    on so many test examples where the round was measured; all right without any."""
    if not any(key in row for key in DISTILLED):
        return True
    loss, steps = row.get("distil_loss"), row.get("distil_steps")
    right = isinstance(loss, int | float) and not isinstance(loss, bool) and math.isfinite(loss) and is_count(steps, 1)
    if not any(key in row for key in DISTILLED[2:]):
        return right
    accuracies = all(is_number(row.get(key), 1.0) for key in ("distil_before", "distil_after"))
    return right and accuracies and is_count(row.get("distil_tested"), 1)


def _is_of_fleet(row: dict[str, Any]) -> bool:
    """Whether what ``row`` says of a fleet can be: the clock, how many clients were lost or late, mean staleness; all
    right without any."""
    if not any(key in row for key in FLEET):
        return True
    return all(is_number(row.get(key)) for key in FLEET) and all(is_count(row[key]) for key in FLEET_COUNTS)


def _is_private(row: dict[str, Any]) -> bool:
    """Whether what ``row`` says of private training can be: a norm for each participant, and the share of them that was
    clipped where there were any; all right without."""
    norms = row.get("update_norms", [])
    if not _is_list(norms, is_number) or ("clipped" in row) != bool(norms):
        return False
    return not norms or (is_number(row["clipped"], 1.0) and len(norms) == len(row.get("participants") or []))


def _has_possible_costs(row: dict[str, Any]) -> bool:
    """Whether what ``row`` says of bytes and FLOPs can be: all of it, or nothing as in rows of earlier versions."""
    if not any(key in row for key in (*BYTES, *FLOPS)):
        return True
    return all(is_count(row.get(key)) for key in BYTES) and all(
        key in row and (row[key] is None or is_count(row[key])) for key in FLOPS
    )


def _is_list(value: Any, right: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(value, list) and (length is None or len(value) == length) and all(map(right, value))


def _share(value: Any) -> bool:
    return value is None or is_number(value, 1.0)
