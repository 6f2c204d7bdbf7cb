"""Validates records: a ``result.json`` must be of the run in its folder, and every number in it and in the rows of
``rounds.jsonl`` must be possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from knot_runner.config.settings.families import family_of_result
from knot_runner.metrics import METRICS
from knot_runner.results import kind_problem
from knot_runner.results.base import BYTES, FLOPS


def is_number(value: Any, top: float = math.inf) -> bool:
    """Whether ``value`` is a finite number from 0 to ``top``."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= top and value < math.inf


def is_count(value: Any, least: int = 0) -> bool:
    """Whether ``value`` is an integer of at least ``least``."""
    return isinstance(value, int) and is_number(value) and value >= least


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


def is_round(row: Any, number: int) -> bool:
    """Whether ``row`` of ``rounds.jsonl`` is of round ``number`` of a federated run and has no impossible value.

    Rows of rounds without evaluation have neither accuracy nor losses; the others have all of them. The same holds for
    the other key groups of :data:`TOGETHER`, which rows of other methods and earlier versions lack.
    """
    if not isinstance(row, dict) or row.get("round") != number:
        return False
    if not all(_all_or_none(row, keys) for keys in TOGETHER) or ("distil_tested" in row and "distil_loss" not in row):
        return False
    tops = {key: metric.top for key, metric in METRICS.items() if key != "client_accuracy"}
    if not all(is_number(row[key], top) for key, top in tops.items() if key in row):
        return False
    takers = row.get("participants")
    if not _is_list(takers, lambda client: isinstance(client, int) and client >= 0) or not _is_private(row):
        return False
    return all(_is_list(row.get(key), _share, len(takers)) for key in ("before", "after"))


def _all_or_none(row: dict[str, Any], keys: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether ``row`` has all of ``keys``, each with a valid value, or none of them."""
    if not any(key in row for key in keys):
        return True
    return all(key in row and possible(row[key]) for key, possible in keys.items())


def _is_private(row: dict[str, Any]) -> bool:
    """Whether the privacy keys of ``row`` are valid: an update norm per participant, and the share of clipped ones if
    there are any; true without these keys."""
    norms = row.get("update_norms", [])
    if not _is_list(norms, is_number) or ("clipped" in row) != bool(norms):
        return False
    return not norms or (is_number(row["clipped"], 1.0) and len(norms) == len(row.get("participants") or []))


def _is_list(value: Any, right: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(value, list) and (length is None or len(value) == length) and all(map(right, value))


def _share(value: Any) -> bool:
    return value is None or is_number(value, 1.0)


def _number_or_none(value: Any) -> bool:
    return value is None or is_number(value)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


#: Groups of keys of which a log row has all or none, with a check of each value: evaluation; server distillation (loss,
#: steps, accuracies before and after on a number of test examples); fleet (clock, mean staleness, numbers of lost and
#: late clients); bytes sent and FLOPs.
TOGETHER: tuple[Mapping[str, Callable[[Any], bool]], ...] = (
    {
        **dict.fromkeys(("accuracy", "f1", "loss", "tempered_loss"), is_number),
        "clients": partial(_is_list, right=_share),
    },
    {"distil_loss": _finite, "distil_steps": partial(is_count, least=1)},
    {"distil_tested": partial(is_count, least=1)}
    | dict.fromkeys(("distil_before", "distil_after"), partial(is_number, top=1.0)),
    {"clock": is_number, "staleness": _number_or_none, "dropped": is_count, "late": is_count, "partial": is_count},
    {**dict.fromkeys(BYTES, is_count), **dict.fromkeys(FLOPS, lambda flops: flops is None or is_count(flops))},
)
