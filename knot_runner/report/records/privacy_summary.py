"""Lines on private training in the summary of a federated run."""

from __future__ import annotations

from typing import Any

from knot_runner.report.render.text import number


def privacy_lines(result: dict[str, Any]) -> list[str]:
    """``(epsilon, delta) = (3.2, 0.001) at user level after 60 rounds``, and how much was clipped."""
    facts = result.get("privacy")
    if facts is None:
        return []
    epsilon, rounds = facts["epsilon"], facts["rounds"]
    shown = "infinity" if epsilon is None else f"{epsilon:.3g}"
    after = "1 round" if rounds == 1 else f"{rounds} rounds"
    by = f" ({facts['accountant']}, simulated)" if facts["accountant"] else " (without noise)"
    lines = [f"(epsilon, delta) = ({shown}, {facts['delta']:.2g}) at user level after {after}{by}"]
    if facts["clipped"] is not None:
        clip = "nothing is clipped" if facts["clip_norm"] is None else f"{facts['clipped']:.0%} of updates clipped"
        lines.append(f"{clip}, median norm {number(facts['median_norm'], 3)}")
    return lines
