"""Means over seeds along an axis: numbers by hand."""

import numpy as np
import pytest
import scipy.stats

from knot_runner.report.figures import style as figure_style
from knot_runner.report.series import band

#: Student's t at 97.5% with one degree of freedom: two seeds that differ by d have an interval of mean +- T1 d / 2.
T1 = 12.706204736


def test_band_equals_t_interval_over_common_places():
    both = band([{0: 1.0, 1: 2.0, 2: 6.0}, {1: 4.0, 2: 0.0, 3: 9.0}])
    assert (both.places.tolist(), both.mean.tolist(), both.seeds.tolist()) == ([1, 2], [3.0, 3.0], [2, 2])
    np.testing.assert_allclose([both.low, both.high], [[3 - T1, 3 - 3 * T1], [3 + T1, 3 + 3 * T1]])
    assert len(band([{0: 1.0}, {1: 1.0}]).places) == 0
    values = [1.0, 2.0, 6.0]
    three, alone = band([{0: value} for value in values]), band([{0: 4.0, 1: 5.0}])
    interval = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert (three.low[0], three.high[0]) == pytest.approx(interval)
    assert alone.low.tolist() == alone.high.tolist() == alone.mean.tolist() == [4.0, 5.0]


def test_share_band_and_axis_stop_at_limits():
    """As the tables' are: no accuracy is below 0 or above 100%."""
    seeds = [{1: 20.0, 2: 99.0}, {1: 60.0, 2: 100.0}]
    cut, whole = band(seeds, top=100.0), band(seeds)
    assert whole.low[0] < 0 and whole.high[1] > 100 and whole.high[0] > 100
    assert cut.low.tolist() == [0.0, whole.low[1]] and cut.high.tolist() == [100.0, 100.0]
    assert cut.mean.tolist() == whole.mean.tolist() == [40.0, 99.5]
    made, (axes,) = figure_style.panels(1, 4.0, 3.0)
    figure_style.draw_band(axes, cut, "black")
    assert axes.get_ylim()[1] > 105
    figure_style.limit_to_shares(axes, 100.0)
    assert axes.get_ylim()[1] == 101.5 and 25 < axes.get_ylim()[0] < 40
    made.clear()
