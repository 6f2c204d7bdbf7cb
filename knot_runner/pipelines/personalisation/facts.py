"""What a result says of clients' own models: measures of every point, and the trade-offs between ID and OOD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from knot_runner.methods.client_matrix import matrix_measures
from knot_runner.methods.federation import Federation
from knot_runner.methods.personalisation.contract import Point
from knot_runner.methods.personalisation.curve import MATCHED, area, id_at_matched_ood
from knot_runner.pipelines.personalisation.client_matrix import ClientMatrix


def point_facts(
    federation: Federation, points: Sequence[Point], steps: Sequence[float], start: ClientMatrix, correct: Tensor,
    loss: Tensor, valid: Tensor,
) -> list[dict[str, Any]]:  # fmt: skip
    """Of every point: where it lies, its measures, and the accuracy on the clients' held-out examples, each client
    alike. ``steps``: of optimisers, in the mean over clients; ``start``: the record of theta_0; ``correct``, ``loss``
    [points, K, K]; ``valid`` [points, K]."""
    sizes = [len(rows) for rows in federation.rows("valid")]
    having = [client for client in federation.numbers if sizes[client]]
    found = []
    for number, point in enumerate(points):
        reference = start.correct.diagonal()
        measures = matrix_measures(start.examples, correct[number], loss[number], federation.numbers, reference)
        shares = [int(valid[number, client]) / sizes[client] for client in having]
        about = {"step": point.step, "epochs": point.epochs, "sgd_steps": steps[number], "alpha": point.alpha}
        if point.phase is not None:
            about["phase"] = point.phase
        found.append({**about, **measures, "valid_accuracy": sum(shares) / len(shares) if shares else None})
    return found


def trade_offs(points: Sequence[dict[str, Any]], start: dict[str, float], chance: float) -> dict[str, Any]:
    """The curve of ``points`` with theta_0 (``start``) on it: the best ID accuracy at an OOD accuracy of at most 1, 2
    or 5 points below that of theta_0; what that gains on theta_0 at 1; and the area above the ID accuracy of theta_0
    and the OOD accuracy of guessing (``chance``), where all variants of one federated run have the same corner."""
    pairs = [(point["ood_accuracy"], point["id_accuracy"]) for point in [start, *points]]
    matched = {str(lost): id_at_matched_ood(pairs, start["ood_accuracy"], lost / 100) for lost in MATCHED}
    gain = matched["1"] - start["id_accuracy"]
    corner = chance, start["id_accuracy"]
    return {"id_at_matched_ood": matched, "gain_at_matched_ood": gain, "area": area(pairs, corner)}
