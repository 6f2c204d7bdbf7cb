"""95% intervals of a recorded run's metrics but accuracy over its test examples, from its predictions.

Examples are resampled as for claims (``report/claims/items.py``); accuracy has Wilson's interval, which needs no
predictions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from knot_runner.bundles.compare import judged_names
from knot_runner.metrics import computed_metrics
from knot_runner.report.claims.items import Want, replicates
from knot_runner.report.run_folders import PREDICTIONS, Job, Run
from knot_runner.report.statistics.intervals import shifted_percentiles

#: Limit on classes, above that of any task, which bounds memory.
MAX_CLASSES = 1000


def resampled_intervals(folder: Path, result: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float]]:
    """(Metric, data set) -> (lower, upper) end of the interval of each metric over all data sets, around the recorded
    value (:func:`shifted_percentiles`); {} if the run in ``folder`` has no predictions."""
    scores, labels = result.get("metrics"), result.get("labels")
    if result["status"] != "done" or not isinstance(scores, dict) or not isinstance(labels, dict):
        return {}
    if not (folder / PREDICTIONS).exists() or len(labels["names"]) > MAX_CLASSES:
        return {}
    run = Run(Job(folder.name, folder, result["task"], result["method"], result["seed"]), "done", result=result)
    wanted = [
        Want(folder.name, "after", metric, name)
        for metric in computed_metrics()
        if metric != "accuracy"
        for name in judged_names(scores.get(metric, {}))
    ]
    try:
        found, _ = replicates(wanted, {folder.name: run}, "")
    except (AssertionError, KeyError):  # a data set without predictions or coordinates
        return {}
    intervals = {}
    for want, values in found.items():
        intervals[want.measure, want.on] = shifted_percentiles(scores[want.measure][want.on], values)
    return intervals
