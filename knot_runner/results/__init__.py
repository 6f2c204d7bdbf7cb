"""Schema of ``result.json``: one dataclass per kind of run, built strictly on writing and on reading.

Reports read the plain dictionary; building the dataclass validates it: every value has its type and range, and related
values agree.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from knot_runner.config.strict import build
from knot_runner.results.base import RunResult
from knot_runner.results.federated import FederatedResult
from knot_runner.results.training import DistilResult, ProbeResult, StagesResult
from knot_runner.results.transport import CoresetResult, DistanceResult, KnnResult, MatrixResult
from knot_runner.util.errors import UserError

#: Kind of run -> dataclass of its result; a plug-in's family validates its own results.
RESULTS: dict[str, type[RunResult]] = {
    "distillation": StagesResult,
    "distil": DistilResult,
    "federated": FederatedResult,
    "probe": ProbeResult,
    "distance": DistanceResult,
    "matrix": MatrixResult,
    "coreset": CoresetResult,
    "knn": KnnResult,
}


def kind_problem(result: dict[str, Any]) -> str:
    """Why ``result``, read from ``result.json``, is invalid for its kind; "" if it is valid.

    A diverged run has no numbers to check. Keys unknown to this version are ignored.
    """
    cls = RESULTS.get(result.get("kind", "distillation"), RunResult)
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
    cls = RESULTS.get(result.get("kind", "distillation"))
    if cls is None:  # a plug-in's family
        return
    unknown = set(result) - {field.name for field in dataclasses.fields(cls)}
    problem = f"unknown keys {sorted(unknown)}" if unknown else kind_problem(result)
    if problem:
        raise ValueError(f"a result that {cls.__name__} does not allow: {problem}")
