"""Schema of ``result.json``: one dataclass per kind of run, built strictly on writing and on reading.

Reports read the plain dictionary; building the dataclass validates it: every value has its type and range, and related
values agree.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from knot_runner.config.settings.families import load
from knot_runner.config.strict import build
from knot_runner.results.base import RunResult
from knot_runner.util.errors import UserError

#: Kind of run -> dataclass of its result, imported on first use; a plug-in's family validates its own results.
RESULTS = {
    "distillation": "knot_runner.results.training:StagesResult",
    "distil": "knot_runner.results.training:DistilResult",
    "federated": "knot_runner.results.federated:FederatedResult",
    "probe": "knot_runner.results.training:ProbeResult",
    "distance": "knot_runner.results.training:DistanceResult",
    "matrix": "knot_runner.results.training:MatrixResult",
    "coreset": "knot_runner.results.training:CoresetResult",
    "knn": "knot_runner.results.training:KnnResult",
}


def _class_of(result: dict[str, Any]) -> type[RunResult] | None:
    """The dataclass of a result; None for a kind that a plug-in has."""
    place = RESULTS.get(result.get("kind", "distillation"))
    return None if place is None else load(place)


def kind_problem(result: dict[str, Any]) -> str:
    """Why ``result``, read from ``result.json``, is invalid for its kind; "" if it is valid.

    A diverged run has no numbers to check. Keys unknown to this version are ignored.
    """
    cls = _class_of(result) or RunResult
    if result["status"] == "diverged":
        cls = RunResult
    names = {field.name for field in dataclasses.fields(cls)}
    try:
        build(cls, {key: value for key, value in result.items() if key in names}, "")
    except UserError as problem:
        return str(problem)
    return ""


def check_written(result: dict[str, Any]) -> None:
    """Raises :class:`ValueError` for a result that our runs must not write: an invalid value, or a key unknown to its
    dataclass."""
    cls = _class_of(result)
    if cls is None:  # a plug-in's family
        return
    unknown = set(result) - {field.name for field in dataclasses.fields(cls)}
    problem = f"unknown keys {sorted(unknown)}" if unknown else kind_problem(result)
    if problem:
        raise ValueError(f"a result that {cls.__name__} does not allow: {problem}")
