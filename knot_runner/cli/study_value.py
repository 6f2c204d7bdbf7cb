"""What trials of a study are compared by: a validation metric that a finished run of their kind has recorded.

Federated runs record every metric on the examples that clients hold out (``partition.valid``), personalised ones
accuracy. Distillation records what it chooses epochs by: macro F1 of the student on its valid part, of mutual learning
the mean over parties, of KNOT the student's loss on the valid part of the soft labels. That loss is of one teacher set
and one loss function, so for KNOT only the distillation's own training can be searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from knot_runner.composing.job import ComposedJob
from knot_runner.composing.override_errors import message_text
from knot_runner.config.settings import DistilSettings, FederatedSettings, KnotSettings, MutualSettings
from knot_runner.metrics import METRICS
from knot_runner.records import ROUNDS_FILE, read_record, read_result
from knot_runner.util.errors import UserError, nearest

#: What ``report.objective`` begins with.
VALID = "valid."
#: Settings of a method -> the metric that its runs record on validation, where there is just one.
RECORDED = {DistilSettings: "f1", MutualSettings: "f1", KnotSettings: "loss"}
#: What can be searched of KNOT: soft labels and loss stay the same.
OF_KNOT = "training.distil."


def study_metric(job: ComposedJob, searched: Iterable[str], sweeper: str) -> str:
    """The validation metric of a study over the keys ``searched``: ``report.objective``, else accuracy, or what runs
    of this kind record. Raises :class:`UserError` where the run records none that trials can be compared by."""
    method = job.method
    own = RECORDED.get(type(method), "accuracy")
    name = str((job.settings.report or {}).get("objective", f"{VALID}{own}"))
    metric = name.removeprefix(VALID)
    if not name.startswith(VALID) or metric not in METRICS:
        names = [f"{VALID}{one}" for one in METRICS]
        raise UserError(f"report.objective: {message_text(name)!r} is no validation metric{nearest(name, names)}")
    if isinstance(method, FederatedSettings):
        if job.settings.held_out is None or job.settings.held_out.valid is None:
            raise UserError(f"{sweeper}: chooses by examples that clients hold out; partition.valid=0.2 holds some out")
        if method.personalisation is not None and metric != "accuracy":
            raise UserError(f"report.objective: of personalised models {VALID}accuracy alone is recorded")
        return metric
    if type(method) not in RECORDED:
        raise UserError(
            f"{sweeper}: method={method.name} records no validation metric; a grid, and compare --best=MEASURE "
            "--over=KEYS --select=half, choose without one"
        )
    if metric != own:
        raise UserError(f"report.objective: of method={method.name} {VALID}{own} alone is recorded")
    if getattr(method, "synthesis", None) is not None:
        raise UserError(f"{sweeper}: method={method.name} is validated on images of its own making, others each trial")
    outside = [key for key in searched if isinstance(method, KnotSettings) and not key.startswith(OF_KNOT)]
    if outside:
        raise UserError(
            f"{outside[0]}: changes what {VALID}{own} of method={method.name} is measured against (teachers or loss); "
            f"{OF_KNOT}* is searched, a grid the rest"
        )
    return metric


def valid_value(job: ComposedJob, metric: str) -> float | None:
    """A finished run's ``metric`` on its validation examples; None where it diverged, or did not finish."""
    result = read_result(job.folder) or {}
    if result.get("status") != "done":
        return None
    if isinstance(job.method, FederatedSettings):
        return held_out_value(result, metric)
    rows = [json.loads(line) for line in read_record(job.folder, result, ROUNDS_FILE).splitlines()]
    return student_value(rows, metric)


def held_out_value(result: dict[str, Any], metric: str) -> float | None:
    """``metric`` on what clients hold out, in a federated run's ``result``."""
    if "personalisation" in result:
        own = result["personalisation"]
        return own["points"][own["chosen"]].get("valid_accuracy")
    return (result.get("valid") or {}).get(metric)


def student_value(rows: list[dict[str, Any]], metric: str) -> float | None:
    """``metric`` of the epoch that a distillation kept, in the last of its rounds' ``rows`` that says it: under the
    student's name, of KNOT as ``loss``, of mutual learning as ``valid``."""
    key_names = ("loss",) if metric == "loss" else ("student", "valid")
    found = [row[key] for row in rows if "round" in row for key in key_names if key in row]
    return found[-1] if found else None
