"""What a run's summary says of clients' own models."""

from __future__ import annotations

from typing import Any

from knot_runner.report.render.text import number, plain


def personal_lines(result: dict[str, Any]) -> list[str]:
    """Which of clients' models the numbers are of, and what they gained and lost against those of the last round."""
    facts = result.get("personalisation")
    if facts is None:
        return _unseen(result)
    point, start = facts["points"][facts["chosen"]], facts["start"]
    which = f"{plain(facts['kind'])}: each client's own model, {point['epochs']} epochs after the rounds"
    if 0 < point["alpha"] != 1:
        which += f", weight {point['alpha']:g} against the model of the last round"
    if point["alpha"] == 0:
        which = f"{plain(facts['kind'])}: the models of the last round were the best on the held-out examples"
    lines = [which]
    for key, title in (("id_accuracy", "ID"), ("ood_accuracy", "OOD")):
        lines.append(f"{title} accuracy {number(start[key], 3)} after the last round -> {number(point[key], 3)}")
    return [*lines, *_unseen(result)]


def _unseen(result: dict[str, Any]) -> list[str]:
    count = result.get("unseen")
    return [f"{count} more clients took part in no round; their accuracy is that of unseen clients"] if count else []
