"""The target for FLex&Chill's speed-up: the best accuracy that the run at T=4 reaches in any of its rounds."""

from __future__ import annotations

from collections.abc import Mapping

from knot_runner.report.claims.measures import LearningCurve
from knot_runner.report.compare.settings import row_numbers, varying
from knot_runner.report.frame import RunSet

WARM = 4.0
#: Settings in which a run may differ from the run at T=4 that sets its target.
FREE = ("method.temperature", "method.lr_control", "method.name")


def best_of_t4(runs: RunSet, curves: Mapping[str, LearningCurve]) -> dict[str, float | str]:
    """Return run id -> best accuracy of the T=4 run with the same seed and other settings, or why it is unknown."""
    cells = row_numbers(runs.settings, [key for key in varying(runs.counted) if key not in FREE])
    best = {}
    for cell, run in zip(cells, runs.runs.run, strict=True):
        is_warm = run.setting("method.temperature") == WARM and not run.setting("method.lr_control")
        if is_warm and run.run_id in curves:
            best[cell, run.seed] = curves[run.run_id].best
    goals = {}
    for cell, run in zip(cells, runs.runs.run, strict=True):
        goals[run.run_id] = best.get((cell, run.seed), "no target, since its T=4 run is missing")
    return goals
