"""Whether records can be believed: a ``result.json`` is that of the run it lies with, and every number in it and in a
row of ``rounds.jsonl`` can be one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from knot_runner.config.settings.families import family_of_result
from knot_runner.metrics import METRICS
from knot_runner.report.records.checks import Checks, is_count, is_number
from knot_runner.report.records.clusters import clusters_valid
from knot_runner.report.records.coreset import CORESET_KEYS, KNN
from knot_runner.report.records.distance import DISTANCE
from knot_runner.report.records.matrix import MATRIX

#: Largest value that each metric can take.
TOP = {name: metric.top for name, metric in METRICS.items()}


def result_problem(result: Any, task: str, method: str, seed: int) -> str:
    """What is wrong with ``result`` as that of this task, method and seed; "" when nothing is."""
    if not isinstance(result, dict) or result.get("status") not in ("done", "diverged"):
        return "has no status done or diverged"
    for key, asked in (("task", task), ("method", method), ("seed", seed)):
        if result.get(key) != asked:
            return f"is of another run ({key} {result.get(key)!r} instead of {asked!r})"
    family = family_of_result(result)
    if family is None:
        return f"is of no known kind ({result['kind']!r})"
    if result["status"] == "diverged":
        return ""
    needed, optional = RESULT_CHECKS.get(family.name, ({}, {}))  # a plug-in's family answers for its own results
    for key, is_sound in needed.items():
        if not result.get(key) or not is_sound(result[key], result):
            return f"holds no sound {key!r}"
    for key, is_sound in optional.items():
        if key in result and not is_sound(result[key], result):
            return f"holds no sound {key!r}"
    return ""


def is_round(row: Any, number: int) -> bool:
    """Whether ``row`` of ``rounds.jsonl`` is that of round ``number`` of a federated run and holds no impossible value.

    Rows of rounds that were not measured have neither accuracy nor losses; the others have all of them.
    """
    if not isinstance(row, dict) or row.get("round") != number:
        return False
    measures = ("accuracy", "f1", "loss", "tempered_loss", "clients")
    if any(key in row for key in measures) and not all(key in row for key in measures):
        return False
    if not all(is_number(row[key], TOP[key]) for key in TOP if key in row and key != "client_accuracy"):
        return False
    takers = row.get("participants")
    if not _is_list(takers, lambda client: isinstance(client, int) and client >= 0):
        return False
    before_and_after = all(_is_list(row.get(key), _share, len(takers)) for key in ("before", "after"))
    return before_and_after and ("clients" not in row or _is_list(row["clients"], _share))


def _is_list(value: Any, right: Callable[[Any], bool], length: int | None = None) -> bool:
    return isinstance(value, list) and (length is None or len(value) == length) and all(map(right, value))


def _share(value: Any) -> bool:
    return value is None or is_number(value, 1.0)


def _rows(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(row, dict) for row in value.values())


def _scores(value: Any, _: dict[str, Any]) -> bool:
    return _rows(value) and all(
        is_number(score, TOP[metric]) for metric, row in value.items() if metric in TOP for score in row.values()
    )


def _teachers(value: Any, _: dict[str, Any]) -> bool:
    return _rows(value) and all(
        is_number(score, TOP[metric]) for row in value.values() for metric, score in row.items() if metric in TOP
    )


def _sizes(value: Any, _: dict[str, Any]) -> bool:
    return _rows(value) and all(
        is_number(row[part])
        for row in value.values()
        for part in ("train", "valid", "test")
        if row.get(part) is not None
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
        isinstance(row, list) and len(row) == classes and all(is_number(share) for share in row) and sum(row) > 0
        for row in value.values()
    )


def _sizes_of_images(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(is_number(value.get(part)) for part in ("train", "test"))


def _class_names(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, dict) and _is_list(value.get("names"), lambda name: isinstance(name, str))


def _federated_scores(value: Any, result: dict[str, Any]) -> bool:
    needed = ("accuracy", "f1", "loss", "tempered_loss")
    return _scores(value, result) and all("ALL" in value.get(metric, {}) for metric in needed)


def _best(value: Any, _: dict[str, Any]) -> bool:
    return isinstance(value, dict) and is_number(value.get("accuracy"), 1.0) and is_number(value.get("round"))


def _count(value: Any, _: dict[str, Any]) -> bool:
    return is_count(value)


def _reached(value: Any, result: dict[str, Any]) -> bool:
    return value is None or (is_count(value, 1) and value <= result["rounds"])


def _target(value: Any, _: dict[str, Any]) -> bool:
    return value is None or is_number(value, 1.0)


def _temperatures(value: Any, _: dict[str, Any]) -> bool:
    return _is_list(value, lambda item: is_number(item) and item > 0)


def _kept_epochs(value: Any, _: dict[str, Any]) -> bool:
    """Title of a trained model -> the epoch that was kept, and why."""
    return isinstance(value, dict) and all(
        isinstance(one, dict) and is_number(one.get("epoch")) and one.get("select") in ("best", "last")
        for one in value.values()
    )


#: Kind of run -> what its result must hold, and what it may: key -> whether the value can be one.
RESULT_CHECKS: dict[str, Checks] = {
    "distillation": (
        {"metrics": _scores, "datasets": _sizes, "labels": _labels},
        {"before": _scores, "teachers": _teachers, "bias": _bias, "kept_epochs": _kept_epochs},
    ),
    "federated": (
        {
            "metrics": _federated_scores,
            "datasets": _sizes_of_images,
            "labels": _class_names,
            "rounds": _count,
            "clients": _count,
            "best": _best,
        },
        {"target": _target, "rounds_to_target": _reached, "clusters": clusters_valid},
    ),
    "probe": ({"temperatures": _temperatures}, {}),
    "distance": DISTANCE,
    "matrix": MATRIX,
    "coreset": CORESET_KEYS,
    "knn": KNN,
}
