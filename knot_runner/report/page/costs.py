"""Costs on a page: bytes and FLOPs of whole runs, by task and method."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from knot_runner.report.records.schema import is_number
from knot_runner.report.render.units import quantity
from knot_runner.report.run_folders import Run

#: Key of a result's ``costs`` -> its unit, in the order they are shown.
COST_KEYS = {"bytes_up": "B", "bytes_down": "B", "bytes_to_target": "B", "client_flops": "FLOP", "server_flops": "FLOP"}


@dataclass(frozen=True)
class CostRow:
    """Median costs over the ``runs`` of a method on a task that record them: key of :data:`COST_KEYS` -> text, ``-`` if
    no run has the cost (target not reached, FLOPs not counted)."""

    task: str
    method: str
    runs: int
    medians: dict[str, str]


def view_costs(runs: Sequence[Run]) -> tuple[CostRow, ...]:
    """One row per task and method of ``runs``, in order of first occurrence."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        stated = run.result.get("costs") if run.result else None
        if isinstance(stated, dict):
            found[run.job.task, run.job.method].append(stated)
    return tuple(CostRow(task, method, len(costs), _medians(costs)) for (task, method), costs in found.items())


def _medians(costs: Sequence[dict[str, Any]]) -> dict[str, str]:
    shown = {}
    for key, unit in COST_KEYS.items():
        amounts = [one[key] for one in costs if is_number(one.get(key))]
        shown[key] = quantity(median(amounts), unit) if amounts else "-"
    return shown
