"""Measures: what they take, what they refuse, masses in common units."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.transport.federated import Measure, distance_between
from knot_runner.transport.federated.measure import common_masses
from tests.golden.messages import refuses
from tests.oracles.transport.federated.samples import draws, fedwad, gaussian

COUNTS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def of(counts: list[int]) -> Measure:
    return Measure(np.zeros((len(counts), 1)), np.array(counts))


@given(COUNTS, COUNTS)
def test_common_masses_are_whole_and_of_one_sum(first: list[int], second: list[int]) -> None:
    a, b, unit = common_masses(of(first), of(second))
    assert unit == a.sum() == b.sum() == math.lcm(sum(first), sum(second))
    assert (a == a.round()).all() and (b == b.round()).all()
    assert np.allclose(a / unit, of(first).masses(), atol=1e-15, rtol=1e-15)


def test_equal_masses_are_counts_and_others_need_not_be() -> None:
    assert Measure(np.zeros((4, 1))).counts.tolist() == [1, 1, 1, 1]
    uneven = Measure(np.zeros((2, 1)), np.array([0.3, 0.6]))
    assert uneven.counts is None and np.allclose(uneven.masses(), [1 / 3, 2 / 3])
    a, b, unit = common_masses(uneven, Measure(np.zeros((5, 1))))
    assert unit == 1 and np.allclose(a, [1 / 3, 2 / 3]) and np.allclose(b, 0.2)


@pytest.mark.parametrize(("points", "weights"), [
    (np.zeros((0, 3)), None), (np.zeros((3, 0)), None), (np.zeros(3), None), ([[0.0], [math.nan]], None),
    ([[0.0], [math.inf]], None), (np.zeros((2, 1)), [1]), (np.zeros((2, 1)), [1, 0]),
    (np.zeros((2, 1)), [0.5, math.nan]),
])  # fmt: skip
def test_bad_samples_are_named(points: np.ndarray, weights: list[float] | None) -> None:
    with refuses():
        Measure(points, weights)


def test_units_beyond_exact_doubles_and_samples_of_different_features_are_refused() -> None:
    with refuses():
        common_masses(of([2**27 - 1]), of([2**27 + 1]))
    with refuses():
        distance_between(gaussian(4, 2), gaussian(4, 3), fedwad(), draws())
