"""Trade-offs of points in the plane of OOD and ID accuracy, higher is better in both (personalisation.md 5)."""

from __future__ import annotations

from collections.abc import Sequence

#: (OOD accuracy, ID accuracy)
Pair = tuple[float, float]
#: Points of OOD accuracy that may be given up for ID accuracy.
MATCHED = (1, 2, 5)


def id_at_matched_ood(points: Sequence[Pair], start_ood: float, given_up: float) -> float | None:
    """The best ID among ``points`` whose OOD is at least ``start_ood`` - ``given_up``; None where none has that."""
    return max((own for other, own in points if other >= start_ood - given_up - 1e-12), default=None)


def area(points: Sequence[Pair], reference: Pair) -> float:
    """The area between ``reference`` and the upper right envelope of ``points`` (the hypervolume); those that are not
    better than it in both add none."""
    low_ood, low_id = reference
    total, reached = 0.0, low_id
    for other, own in sorted(points, reverse=True):  # from the highest OOD down, each adds what lies above the last
        if other > low_ood and own > reached:
            total += (other - low_ood) * (own - reached)
            reached = own
    return total
