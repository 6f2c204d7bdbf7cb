"""The validation metric that compares trials of a study, as recorded by a finished run of their kind.

Federated runs record every metric on the examples that clients hold out (``partition.valid``), personalised ones
accuracy. Distillation records the metric by which it selects epochs: macro F1 of the student on its validation split;
for mutual learning the mean over parties; for KNOT the student's loss on the validation split of the soft labels. That
loss depends on the teachers and the loss function, so for KNOT only the distillation's own training can be searched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from knot_runner.composing.hydra_keys import SWEEPER
from knot_runner.composing.job import ComposedJob
from knot_runner.composing.override_errors import message_text
from knot_runner.config.settings import DistilSettings, FederatedSettings, KnotSettings, MutualSettings
from knot_runner.metrics import METRICS
from knot_runner.records import ROUNDS_FILE, read_record, read_result
from knot_runner.util.errors import UserError, nearest

#: Prefix of ``report.objective``.
VALID = "valid."
#: Settings of a method -> the metric that its runs record on validation, where there is just one.
RECORDED = {DistilSettings: "f1", MutualSettings: "f1", KnotSettings: "loss"}
#: Prefix of the keys that can be searched for KNOT: they leave soft labels and loss unchanged.
OF_KNOT = "training.distil."


def study_metric(job: ComposedJob, searched: Iterable[str]) -> str:
    """The validation metric of a study over the keys ``searched``: ``report.objective``, else the one that runs of this
    kind record, by default accuracy. Raises :class:`UserError` if the run records none that can compare trials."""
    method = job.method
    own = RECORDED.get(type(method), "accuracy")
    name = str((job.settings.report or {}).get("objective", f"{VALID}{own}"))
    metric = name.removeprefix(VALID)
    if not name.startswith(VALID) or metric not in METRICS:
        names = [f"{VALID}{one}" for one in METRICS]
        raise UserError(f"report.objective: {message_text(name)!r} is no validation metric{nearest(name, names)}")
    if isinstance(method, FederatedSettings):
        if job.settings.held_out is None or job.settings.held_out.valid is None:
            raise UserError(f"{SWEEPER}: chooses by examples that clients hold out; partition.valid=0.2 holds some out")
        if method.personalisation is not None and metric != "accuracy":
            raise UserError(f"report.objective: of personalised models {VALID}accuracy alone is recorded")
        return metric
    if type(method) not in RECORDED:
        raise UserError(
            f"{SWEEPER}: method={method.name} records no validation metric; a grid, and compare --best=MEASURE "
            "--over=KEYS --select=half, choose without one"
        )
    if metric != own:
        raise UserError(f"report.objective: of method={method.name} {VALID}{own} alone is recorded")
    if getattr(method, "synthesis", None) is not None:
        raise UserError(f"{SWEEPER}: method={method.name} is validated on images of its own making, others each trial")
    outside = [key for key in searched if isinstance(method, KnotSettings) and not key.startswith(OF_KNOT)]
    if outside:
        raise UserError(
            f"{outside[0]}: changes what {VALID}{own} of method={method.name} is measured against (teachers or loss); "
            f"{OF_KNOT}* is searched, a grid the rest"
        )
    return metric


def valid_value(job: ComposedJob, metric: str) -> float | None:
    """A finished run's ``metric`` on its validation examples; None if it diverged or did not finish."""
    result = read_result(job.folder) or {}
    if result.get("status") != "done":
        return None
    if isinstance(job.method, FederatedSettings):
        return held_out_value(result, metric)
    rows = [json.loads(line) for line in read_record(job.folder, result, ROUNDS_FILE).splitlines()]
    return student_value(rows, metric)


def held_out_value(result: dict[str, Any], metric: str) -> float | None:
    """``metric`` on the clients' held-out examples, from a federated run's ``result``."""
    if "personalisation" in result:
        own = result["personalisation"]
        return own["points"][own["chosen"]].get("valid_accuracy")
    return (result.get("valid") or {}).get(metric)


def student_value(rows: list[dict[str, Any]], metric: str) -> float | None:
    """``metric`` of the epoch that a distillation kept, from the last log row in ``rows`` that has it: under the
    student's name, for KNOT as ``loss``, for mutual learning as ``valid``."""
    key_names = ("loss",) if metric == "loss" else ("student", "valid")
    found = [row[key] for row in rows if "round" in row for key in key_names if key in row]
    return found[-1] if found else None
