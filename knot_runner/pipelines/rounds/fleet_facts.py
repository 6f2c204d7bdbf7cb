"""What a result says of a run's fleet, from the rows of its rounds."""

from __future__ import annotations

from typing import Any

from knot_runner import metrics
from knot_runner.config.settings import FleetSettings
from knot_runner.pipelines.rounds.loop import LogRow


def fleet_notes(fleet: FleetSettings | None) -> list[str]:
    """What the user should hear of a fleet."""
    return [f"fleet {fleet.name}: its clock is simulated, in virtual seconds"] if fleet is not None else []


def fleet_counts(rows: list[LogRow]) -> dict[str, int]:
    """Clients that dropped out, came too late, or did partial work, in all ``rows`` together."""
    return {key: sum(row[key] for row in rows) for key in ("dropped", "late", "partial")}


def fleet_result(rows: list[LogRow], target: float | None) -> dict[str, Any]:
    """The clock at the end and at the first round at ``target``, and what became of the clients; {} without a fleet."""
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
