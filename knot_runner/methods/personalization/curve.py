"""Metrics of clients' own models at every evaluated point, and the trade-off between ID and OOD accuracy.

ID (in-distribution) accuracy is the accuracy on a client's own test examples. OOD (out-of-distribution) accuracy is the
accuracy on the test examples of other clients. See docs/papers/soup.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from knot_runner.methods.federation import Federation
from knot_runner.methods.personalization.contract import Point
from knot_runner.metrics import Measures
from knot_runner.util.files import Facts

#: (OOD accuracy, ID accuracy)
Pair = tuple[float, float]
#: Allowed decreases of OOD accuracy, in percentage points, for which the best ID accuracy is reported.
MATCHED = (1, 2, 5)


def id_at_matched_ood(points: Sequence[Pair], start_ood: float, given_up: float) -> float | None:
    """Return the best ID accuracy among points with an OOD accuracy of at least ``start_ood - given_up``.

    A point is a pair (OOD accuracy, ID accuracy). If no point reaches this OOD accuracy, the result is None.
    """
    return max((id_accuracy for other, id_accuracy in points if other >= start_ood - given_up - 1e-12), default=None)


def area(points: Sequence[Pair], reference: Pair) -> float:
    """Return the hypervolume of ``points``: the area between ``reference`` and the upper right envelope of the points.

    Only points that exceed ``reference`` in both coordinates contribute to the area.
    """
    low_ood, low_id = reference
    total = 0.0
    reached = low_id
    for other, id_accuracy in sorted(points, reverse=True):  # add the area above the previous point
        if other > low_ood and id_accuracy > reached:
            total += (other - low_ood) * (id_accuracy - reached)
            reached = id_accuracy
    return total


def point_facts(federation: Federation, point: Point, steps: float, measures: Measures, valid: Tensor) -> Facts:
    """Return facts about ``point``: its fields, the number of steps, the measures, and the mean validation accuracy.

    Args:
        federation: All clients.
        point: The evaluated point.
        steps: The number of optimizer steps, averaged over clients.
        measures: The measures at this point.
        valid: Each client's number of correct predictions on held-out examples, shape [K].
    """
    rows = federation.rows("valid")
    shares = [int(valid[client]) / len(rows[client]) for client in federation.numbers if len(rows[client])]
    about: Facts = {"step": point.step, "epochs": point.epochs, "sgd_steps": steps, "alpha": point.alpha}
    if point.phase is not None:
        about["phase"] = point.phase
    return {**about, **measures, "valid_accuracy": sum(shares) / len(shares) if shares else None}


def trade_offs(points: Sequence[Facts], start: Measures, chance: float) -> Facts:
    """Return summary values of the trade-off between ID and OOD accuracy.

    Args:
        points: The measures at each evaluated point.
        start: The measures of theta_0, the models before personalization.
        chance: The accuracy of guessing.

    Returns:
        - ``id_at_matched_ood``: for d = 1, 2 and 5, the best ID accuracy among models whose OOD accuracy is at most
          d percentage points below that of theta_0
        - ``gain_at_matched_ood``: ``id_at_matched_ood`` for d = 1, minus the ID accuracy of theta_0
        - ``area``: the result of :func:`area`. The reference point has the OOD accuracy ``chance`` and the ID accuracy
          of theta_0
    """
    pairs = [(point["ood_accuracy"], point["id_accuracy"]) for point in [start, *points]]
    start_ood, start_id = pairs[0]
    matched = {str(lost): id_at_matched_ood(pairs, start_ood, lost / 100) for lost in MATCHED}
    gain = matched["1"] - start_id
    return {"id_at_matched_ood": matched, "gain_at_matched_ood": gain, "area": area(pairs, (chance, start_id))}
