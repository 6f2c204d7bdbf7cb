"""The costs of a run, as a line of its summary."""

from __future__ import annotations

from typing import Any

from knot_runner.report.render.units import quantity


def cost_lines(result: dict[str, Any]) -> list[str]:
    """``12.4 MB up, 12.4 MB down; 3.1 TFLOP at clients``; nothing of results that do not say, as earlier versions'."""
    costs = result.get("costs")
    if costs is None:
        return []
    text = f"{quantity(costs['bytes_up'], 'B')} up, {quantity(costs['bytes_down'], 'B')} down"
    places = {"clients": costs["client_flops"], "server": costs["server_flops"]}
    known = [f"{quantity(flops, 'FLOP')} at {place}" for place, flops in places.items() if flops]
    unknown = [place for place, flops in places.items() if flops is None]
    if known:
        text += f"; {', '.join(known)}"
    if unknown:
        text += f"; FLOPs at {' and '.join(unknown)} not counted"
    reached = costs.get("bytes_to_target")
    return [text] if reached is None else [text, f"{quantity(reached, 'B')} both ways until the target was reached"]
