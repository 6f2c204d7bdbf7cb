"""Plans from few sources to many sinks against POT's own solution of the whole problem."""

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.transport.otdd import small_support
from knot_runner.transport.otdd.small_support import best_plan


def scores_of(sources, seed=0):
    """Of 600 sinks, most of which are settled without the simplex."""
    draws = np.random.default_rng(seed)
    return draws.normal(size=(sources, 4)) @ draws.normal(size=(4, 600))


def best_total(scores):
    sources, sinks = scores.shape
    masses = np.full(sources, sinks / sources), np.ones(sinks)
    return -ot.emd2(*masses, -(scores - scores.max()).astype(float), numItermax=10**7) + sinks * scores.max()


def check(scores, heights):
    sources, sinks = scores.shape
    plan = np.full(scores.shape, np.nan, scores.dtype)
    actual = best_plan(scores, heights, plan)
    exact = float(np.finfo(scores.dtype).eps) * 100
    np.testing.assert_allclose(plan.sum(0), 1, rtol=exact)
    np.testing.assert_allclose(plan.sum(1), sinks / sources, rtol=exact)
    assert plan.min() >= 0
    within = exact * sinks * float(np.abs(scores).max())
    assert np.vdot(plan, scores) == pytest.approx(best_total(scores), rel=exact, abs=within)
    lifted = scores + actual[:, None]
    assert (lifted.max(0) - lifted)[plan > 0].max() <= 1e4 * exact * np.abs(scores).max()  # complementary slackness
    return plan


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(1, 90), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 1.0, 100.0]))
def test_best_plan_is_optimal_for_any_first_heights(sources, sinks, seed, off):
    draws = np.random.default_rng(seed)
    scores = draws.normal(size=(sources, 3)) @ draws.normal(size=(3, sinks))
    check(scores, off * draws.normal(size=sources))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(8, 60), st.integers(0, 2**32 - 1))
def test_ties_are_no_trouble(sources, sinks, seed):
    draws = np.random.default_rng(seed)
    check(draws.integers(0, 3, (sources, sinks)).astype(float), draws.normal(size=sources))


def test_good_heights_leave_little_to_the_simplex(monkeypatch):
    scores, sizes = scores_of(5, seed=1), []
    heights = best_plan(scores, None, np.empty_like(scores))
    simplex = small_support._simplex
    monkeypatch.setattr(small_support, "_simplex", lambda *given: sizes.append(given[0].shape[1]) or simplex(*given))
    check(scores + 1e-3 * np.random.default_rng(2).normal(size=scores.shape), heights)
    assert max(sizes) < 200


@pytest.mark.parametrize("sources", [2, 5, 10, 7])  # 7: masses that are no whole numbers
@pytest.mark.parametrize("off", [0.0, 0.3, 3.0, 100.0])
def test_600_sinks_whatever_the_first_heights_are(sources, off):
    scores = scores_of(sources, seed=sources)
    check(scores, off * np.random.default_rng(1).normal(size=sources))
    check(scores.astype(np.float32), off * np.random.default_rng(2).normal(size=sources))


def test_settle_corrects_wrongly_settled_sinks():
    """Settled by their second best source, forty sinks would cost more than POT's plan of the whole problem."""
    scores = scores_of(5)
    heights = best_plan(scores, None, np.empty_like(scores))
    lifted = scores + heights[:, None]
    order = np.argsort(-lifted, 0)
    own, sure = order[0].copy(), -np.diff(-np.sort(-lifted, 0), axis=0)[0]
    unsettled = sure < np.sort(sure)[120]  # a fifth is left to the simplex
    wrong = np.flatnonzero(~unsettled)[::12]
    own[wrong] = order[1][wrong]
    assert small_support._wrong(scores, heights, own).nonzero()[0].tolist() == wrong.tolist()
    plan = np.empty_like(scores)
    small_support._settle(scores, own, unsettled.copy(), plan)
    assert np.vdot(plan, scores) == pytest.approx(best_total(scores), rel=1e-12)
    np.testing.assert_allclose(plan.sum(1), 120, rtol=1e-12)
    np.testing.assert_allclose(plan.sum(0), 1, rtol=1e-12)
