"""Schema of ``result.json``: one dataclass per kind of run, built strictly to write a result, and to
read one from a bundle.

Building the dataclass validates the result: every value has its type and range, and related values agree.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from knot_runner.config.settings.families import load
from knot_runner.config.strict import build
from knot_runner.results.base import RunResult
from knot_runner.util.errors import UserError

#: Kind of run -> dataclass of its result, imported on first use.
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


def kind_problem(result: dict[str, Any]) -> str:
    """Why ``result`` is not one that a run of its kind writes; "" if it is. A plug-in's results are not checked."""
    place = RESULTS.get(result["kind"])
    if place is None:
        return ""
    cls = load(place)
    unknown = set(result) - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        return f"unknown keys {sorted(unknown)}"
    if result["status"] == "diverged":  # there are no numbers to check
        cls = RunResult
        names = {field.name for field in dataclasses.fields(cls)}
        result = {key: value for key, value in result.items() if key in names}
    try:
        build(cls, result, "")
    except UserError as problem:
        return str(problem)
    return ""
