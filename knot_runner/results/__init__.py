"""What ``result.json`` holds, by kind of run: one dataclass each, built strictly when written and when read.

Reports read the plain dictionary; building the dataclass is the check that it can be believed: every value is of its
type and within what is possible, and values that belong together agree.
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

#: Kind of run -> what its result must be; a plug-in's family answers for its own.
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
    """What is wrong with ``result``, read from ``result.json``, as that of its kind; "" when nothing is.

    A diverged run has no numbers to check. Keys that this version does not know are left alone.
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
    """Raises :class:`ValueError` for a result that a run of ours must not write: a value that cannot be, or a key that
    its dataclass does not have."""
    cls = RESULTS.get(result.get("kind", "distillation"))
    if cls is None:  # a plug-in's family
        return
    unknown = set(result) - {field.name for field in dataclasses.fields(cls)}
    problem = f"unknown keys {sorted(unknown)}" if unknown else kind_problem(result)
    if problem:
        raise ValueError(f"a result that {cls.__name__} does not allow: {problem}")
