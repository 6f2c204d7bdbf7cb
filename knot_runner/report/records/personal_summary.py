"""Lines on clients' own models in a run's summary."""

from __future__ import annotations

from typing import Any

from knot_runner.report.render.text import number, plain


def personal_lines(result: dict[str, Any]) -> list[str]:
    """Lines on which of the clients' models is reported, and its gains and losses against the last round's."""
    facts = result.get("personalisation")
    if facts is None:
        return _unseen(result)
    point, start = facts["points"][facts["chosen"]], facts["start"]
    which = f"{plain(facts['kind'])}: each client's own model, {point['epochs']} epochs after the rounds"
    if 0 < point["alpha"] != 1:
        which += f", weight {point['alpha']:g} against the model of the last round"
    if point.get("phase") == "combined":
        which = f"{plain(facts['kind'])}: combined from the models of several clients, step {point['step']}"
    if point["alpha"] == 0:
        which = f"{plain(facts['kind'])}: the models of the last round were the best on the held-out examples"
    lines = [which]
    for key, title in (("id_accuracy", "ID"), ("ood_accuracy", "OOD")):
        lines.append(f"{title} accuracy {number(start[key], 3)} after the last round -> {number(point[key], 3)}")
    return [*lines, *_combination(facts), *_unseen(result)]


def _combination(facts: dict[str, Any]) -> list[str]:
    """Lines on how clients' models were combined."""
    lines = []
    if similarity := facts.get("similarity"):
        lines.append(
            f"label histograms of two clients have a cosine of {number(similarity['mean'], 3)} in the mean, "
            f"{number(similarity['least'], 3)} at the least; {similarity['kept']:.1f} clients are aggregated for one"
        )
    if transfer := facts.get("transfer"):
        line = f"mean lambda {number(transfer['own'], 3)} of own updates, {number(transfer['others'], 3)} of others'"
        if transfer.get("within") is not None and transfer.get("across") is not None:
            line += f" ({number(transfer['within'], 3)} within groups, {number(transfer['across'], 3)} across)"
        if transfer.get("auc") is not None:
            line += f"; it tells groups apart with an AUC of {number(transfer['auc'], 3)}"
        lines.append(line)
    return lines


def _unseen(result: dict[str, Any]) -> list[str]:
    count = result.get("unseen")
    return [f"{count} more clients took part in no round; their accuracy is that of unseen clients"] if count else []
