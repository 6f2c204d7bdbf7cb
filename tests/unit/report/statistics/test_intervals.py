"""Means, intervals and effects over seeds and test items, compared with scipy, resamples and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from knot_runner.report.statistics import intervals as resampling
from knot_runner.report.statistics.effects import EffectEstimate, estimate_effect, holm, interval, p_value
from knot_runner.report.statistics.intervals import clipped_interval, item_weights, mean_interval


def test_mean_and_clipped_intervals_handle_edge_values():
    assert mean_interval([0.4]) == (0.4, None) and mean_interval([0.5, 0.5]) == (0.5, 0.0)
    assert clipped_interval(-0.1, 1.2, 1.0) == (0.0, 1.0) and clipped_interval(-5.0, 40.0, 100.0) == (0.0, 40.0)
    assert clipped_interval(-0.1, 1.2, None) == (-0.1, 1.2)


@given(st.lists(st.floats(0, 2), min_size=2, max_size=12).filter(lambda v: max(v) - min(v) > 1e-3))
def test_mean_interval_is_that_of_scipy(values):
    mean, half = mean_interval(values)
    interval = stats.t.interval(0.95, len(values) - 1, loc=stats.tmean(values), scale=stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx(interval, abs=1e-9)


NUMBERS = st.floats(-5, 5).map(lambda value: round(value, 3))


@settings(max_examples=40)
@given(st.lists(NUMBERS, min_size=2, max_size=6, unique=True), NUMBERS)
def test_effect_over_seeds_alone_is_students_t(values, threshold):
    found = estimate_effect(values, None)
    mean, half = mean_interval(values)
    assert interval(found) == pytest.approx((mean - half, mean + half), rel=1e-9, abs=1e-12)
    expected = stats.ttest_1samp(values, threshold).pvalue
    assert p_value(found, threshold) == pytest.approx(max(expected, 1e-15), rel=1e-6)


def test_effect_of_one_seed_uses_items_without_p():
    draws = np.random.default_rng(0).normal(3.0, 0.5, (4000, 1))
    found = estimate_effect([3.0], draws)
    low, high = interval(found)
    assert (high - low) / 2 == pytest.approx(1.96 * draws.std(ddof=1), rel=1e-3)
    assert p_value(found, 0.0) is None


def test_p_value_of_flat_effect_uses_seed_count():
    found = estimate_effect([1.0, 1.0, 1.0], None)
    assert found.flat and interval(found) == (1.0, 1.0)
    assert p_value(found, 0.9) == 0.25 and p_value(found, 1.0) == 1.0


def test_shared_variance_matches_covariance_of_resampled_effects():
    rng = np.random.default_rng(1)
    common, own = rng.normal(0, 0.3, (200_000, 1)), rng.normal(0, 0.2, (200_000, 4))
    found = estimate_effect([0.1, 0.2, 0.3, 0.4], common + own)
    assert found.shared == pytest.approx(0.09, rel=0.03)
    assert found.items == pytest.approx(0.09 + 0.04 / 4, rel=0.03)
    apart = estimate_effect([0.1, 0.2, 0.3, 0.4], own)  # every seed with test items of its own
    assert apart.shared < 1e-3


def test_half_width_of_seeds_and_items():
    both = EffectEstimate(0.0, 4, 0.3, shared=0.02)
    t, z = stats.t.ppf(0.975, 3) * 0.3 / 2, stats.norm.ppf(0.975) * math.sqrt(0.02)
    assert both.half(0.05) == pytest.approx(math.hypot(t, z), rel=1e-9)
    many = EffectEstimate(1.0, 300, 0.1, shared=0.04)  # items that the seeds share are not averaged away
    assert EffectEstimate(1.0, 3, 0.1, shared=0.04).half(0.05) > many.half(0.05) > 1.9 * 0.2
    by_chance = EffectEstimate(1.0, 2, 1e-6, shared=0.0, items=0.01)  # the items are the least width
    assert by_chance.half(0.05) == pytest.approx(1.96 * 0.1, rel=1e-3)


@pytest.mark.parametrize(("items", "own"), [(0.0, 0.0), (0.3, 0.3), (1.0, 0.0), (1.0, 1.0), (0.0, 3.0)])
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_interval_covers_the_truth_in_simulations(items, own, seeds):
    """Seeds vary by 1; items move all seeds together by ``items``, and each by ``own``."""
    rng, count = np.random.default_rng(seeds), 1000
    effects = rng.normal(size=(count, seeds)) + items * rng.normal(size=(count, 1))
    effects += own * rng.normal(size=(count, seeds))
    share = items**2, items**2 + own**2 / seeds
    made = [EffectEstimate(e.mean(), seeds, e.std(ddof=1), *share) for e in effects]
    covered = np.mean([abs(one.effect) <= one.half(0.05) for one in made])
    assert covered >= 0.93  # three standard errors below 95%


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_its_definition(values):
    found = holm(values)
    for alpha in (0.01, 0.05, 0.2, 0.5):
        rejected, left = set(), sorted(range(len(values)), key=lambda i: values[i])
        while left and (len(left) * values[left[0]]) < alpha:
            rejected.add(left.pop(0))
        assert {i for i, p in enumerate(found) if p < alpha} == rejected


@pytest.mark.parametrize(("alpha", "seeds"), [(0.05, 3), (0.05 * 2 / 3, 3), (0.05 * 2 / 9 / 7, 6), (0.01, 24)])
def test_critical_values_are_those_of_scipy(alpha, seeds):
    over_seeds, items = EffectEstimate(0.0, seeds, 1.0), EffectEstimate(0.0, seeds, 0.0, shared=1.0)
    assert over_seeds.half(alpha) * math.sqrt(seeds) == pytest.approx(stats.t.ppf(1 - alpha / 2, seeds - 1), rel=1e-9)
    assert items.half(alpha) == pytest.approx(stats.norm.ppf(1 - alpha / 2), rel=1e-9)


def summed(columns, seed):
    """The sums of ``columns`` over the items of each resample."""
    return np.concatenate([weights @ columns for weights in item_weights(len(columns), seed)])


def test_weights_of_items_are_those_of_multinomial_draws():
    assert (summed(np.ones((50, 1)), 7) == 50).all()  # as many items as there are
    weights = summed(np.eye(50), 7)
    assert weights.mean() == 1 and weights.var() == pytest.approx(49 / 50, rel=0.02)
    assert weights.mean(0) == pytest.approx(np.ones(50), abs=0.1)
    assert np.cov(weights[:, 0], weights[:, 1])[0, 1] == pytest.approx(-1 / 50, abs=0.06)


def test_weights_depend_only_on_size_and_seed(monkeypatch):
    column = np.random.default_rng(0).normal(size=(30, 1))
    assert not np.allclose(summed(column, 6), summed(column, 5), rtol=0, atol=1)
    monkeypatch.setattr(resampling, "DRAWS", 100)  # several blocks
    assert summed(column, 5).shape == (resampling.RESAMPLES, 1)
