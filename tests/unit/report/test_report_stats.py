"""Mean and interval over seeds, against a hand calculation and scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from knot_runner.report.statistics.intervals import clipped_interval, mean_interval


def test_one_value_has_no_interval() -> None:
    assert mean_interval([0.4]) == (0.4, None)


def test_equal_values_have_a_zero_interval() -> None:
    assert mean_interval([0.5, 0.5]) == (0.5, 0.0)


@given(st.lists(st.floats(0, 2), min_size=2, max_size=12).filter(lambda v: max(v) - min(v) > 1e-3))
def test_equals_scipy(values: list[float]) -> None:
    mean, half = mean_interval(values)
    low, high = scipy_stats.t.interval(
        0.95, len(values) - 1, loc=scipy_stats.tmean(values), scale=scipy_stats.sem(values)
    )
    assert (mean - half, mean + half) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


def test_the_interval_of_a_share_is_cut_at_both_ends() -> None:
    assert clipped_interval(-0.1, 1.2, 1.0) == (0.0, 1.0) and clipped_interval(-5.0, 40.0, 100.0) == (0.0, 40.0)
    assert clipped_interval(-0.1, 1.2, None) == (-0.1, 1.2)
