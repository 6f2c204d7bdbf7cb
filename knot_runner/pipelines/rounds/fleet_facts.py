"""The fleet's part of a result, from the rows of its rounds."""

from __future__ import annotations

from typing import Any

from knot_runner import metrics
from knot_runner.config.settings import FleetSettings
from knot_runner.pipelines.rounds.loop import LogRow


def fleet_notes(fleet: FleetSettings | None) -> list[str]:
    """Returns notes to the user on a fleet."""
    return [f"fleet {fleet.name}: its clock is simulated, in virtual seconds"] if fleet is not None else []


def fleet_counts(rows: list[LogRow]) -> dict[str, int]:
    """Returns how many clients dropped out, were late, or did partial work, summed over ``rows``."""
    return {key: sum(row[key] for row in rows) for key in ("dropped", "late", "partial")}


def fleet_result(rows: list[LogRow], target: float | None) -> dict[str, Any]:
    """Returns the clock at the end and at the first round at ``target``, and :func:`fleet_counts`; {} without a
    fleet."""
    if not rows or "clock" not in rows[-1]:
        return {}
    arrived = [len(row["participants"]) for row in rows]
    stale = sum(row["staleness"] * count for row, count in zip(rows, arrived, strict=True))
    facts = {
        "clock": rows[-1]["clock"],
        "arrived": sum(arrived),
        **fleet_counts(rows),
        "empty": arrived.count(0),
        "staleness": stale / max(sum(arrived), 1),
    }
    curve = [(row["clock"], row["accuracy"]) for row in rows if "accuracy" in row]
    return {"fleet": facts, "time_to_target": metrics.time_to_target(curve, target)}
