"""Trade-offs between OOD and ID accuracy: by hand, and against points thrown at random."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.methods.personalization.curve import area, id_at_matched_ood

shares = st.integers(0, 20).map(lambda value: value / 20)
curves = st.lists(st.tuples(shares, shares), max_size=6)


def test_area_by_hand():
    """Two steps over the corner (.1, .5); the point (.3, .55) lies below the envelope, (.05, .9) left of the corner."""
    points = [(0.8, 0.6), (0.4, 0.7), (0.3, 0.55), (0.05, 0.9)]
    assert area(points, (0.1, 0.5)) == pytest.approx(0.7 * 0.1 + 0.3 * 0.1)
    assert area([(0.4, 0.5), (0.1, 0.9)], (0.1, 0.5)) == 0
    assert area([], (0.1, 0.5)) == 0


@given(curves, shares, shares)
def test_area_is_what_the_points_dominate(points, low_ood, low_id):
    at = (np.arange(20) + 0.5) / 20
    ood, own = np.meshgrid(at, at)
    inside = np.zeros_like(ood, dtype=bool)
    for a, b in points:
        inside |= (ood < a) & (own < b)
    inside &= (ood > low_ood) & (own > low_id)
    assert area(points, (low_ood, low_id)) == pytest.approx(inside.mean())


def test_id_at_matched_ood():
    points = [(0.80, 0.60), (0.79, 0.70), (0.75, 0.90)]
    assert id_at_matched_ood(points, 0.8, 0.0) == 0.6
    assert id_at_matched_ood(points, 0.8, 0.01) == 0.7  # exactly a point less is allowed
    assert id_at_matched_ood(points, 0.8, 0.05) == 0.9
    assert id_at_matched_ood(points, 0.9, 0.05) is None
