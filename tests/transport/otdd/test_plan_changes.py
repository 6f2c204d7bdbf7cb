"""Plans found from the plan of other scores, against POT's own solution of the whole problem."""

from __future__ import annotations

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.transport.otdd import plan_changes
from knot_runner.transport.otdd.plan_changes import SparsePlan, changed_plan, sparse_plan
from knot_runner.transport.otdd.small_support import best_plan


def known(scores):
    plan = np.empty_like(scores)
    return sparse_plan(plan, best_plan(scores, None, plan))


def check(scores, before):
    """The plan from ``before`` [S, n], after a comparison with POT's."""
    sources, sinks = scores.shape
    first = known(before)
    plan, changed = changed_plan(scores, first)
    assert (plan.units > 0).all() and (np.diff(plan.sources * sinks + plan.sinks) > 0).all()
    weights = plan.weights(sinks, np.dtype(np.float64)).toarray()
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(0), sources / sinks, rtol=1e-12)
    exact = 100 * float(np.finfo(scores.dtype).eps) * float(np.abs(scores).max())
    masses = np.full(sources, 1 / sources), np.full(sinks, 1 / sinks)
    best = scores.max() - ot.emd2(*masses, (scores.max() - scores).astype(float), numItermax=10**7)
    assert np.vdot(weights, scores) / sources == pytest.approx(best, abs=exact)
    lifted = scores + plan.heights[:, None]
    assert (lifted.max(0) - lifted)[weights > 0].max() <= sources * exact  # the heights prove it
    same = np.setdiff1d(np.arange(sources), changed)
    earlier = first.weights(sinks, np.dtype(np.float64)).toarray()
    np.testing.assert_array_equal(weights[same], earlier[same])
    return plan, changed


def scores_of(sources, sinks, seed):
    draws = np.random.default_rng(seed)
    return draws.normal(size=(sources, 3)) @ draws.normal(size=(3, sinks))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.01, 0.3, 10.0]))
def test_the_plan_is_optimal_whatever_was_known(sources, sinks, seed, off):
    scores = scores_of(sources, sinks, seed)
    check(scores, scores + off * scores_of(sources, sinks, seed + 1))


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(4, 30), st.integers(0, 2**32 - 1))
def test_ties_are_no_trouble(sources, sinks, seed):
    draws = np.random.default_rng(seed)
    check(draws.integers(0, 3, (sources, sinks)).astype(float), draws.integers(0, 3, (sources, sinks)).astype(float))


@pytest.mark.parametrize("sinks", [60, 63])  # six and 6.3 for each source
def test_single_precision(sinks):
    scores = scores_of(10, sinks, 0)
    check(scores.astype(np.float32), (scores + 0.1 * scores_of(10, sinks, 1)).astype(np.float32))


@pytest.fixture
def solved(monkeypatch):
    """How often the whole problem was solved."""
    calls, real = [], plan_changes.best_plan
    monkeypatch.setattr(plan_changes, "best_plan", lambda *given: calls.append(1) or real(*given))
    return calls


@pytest.mark.parametrize("sinks", [60, 63])
def test_small_changes_are_found_without_solving_the_whole_problem(solved, sinks):
    scores = scores_of(10, sinks, 3)
    plan, changed = check(scores + 0.1 * scores_of(10, sinks, 4), scores)
    assert not solved and 1 < len(changed) < 10
    again, none = changed_plan(scores + 0.1 * scores_of(10, sinks, 4), plan)
    assert not len(none) and again.units is plan.units


def test_after_too_many_cycles_the_whole_problem_is_solved(solved, monkeypatch):
    before, scores = scores_of(10, 60, 3), scores_of(10, 60, 5)
    _, changed = check(scores, before)
    assert not solved
    monkeypatch.setattr(plan_changes, "CYCLES", 2)
    plan, changed = check(scores, before)
    assert solved == [1] and changed.tolist() == list(range(10))
    np.testing.assert_array_equal(plan.sinks, known(scores).sinks)


def test_scores_below_rounding_move_nothing():
    """A gain of less than 64 units of rounding of the largest score is no gain."""
    scores = np.array([[1000.0, 1.0, 0.0], [1000.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    plan = known(scores)
    gain = scores.copy()
    for source, sink in zip(plan.sources, plan.sinks, strict=True):
        gain[(source + 1) % 3, sink] = scores[source, sink] + 1e-13
        gain[(source + 2) % 3, sink] = scores[source, sink] - 10
    assert not len(changed_plan(gain, plan)[1])
    gain[(plan.sources + 1) % 3, plan.sinks] += 1e-9
    assert len(changed_plan(gain, plan)[1]) == 3


def test_mass_moves_as_far_as_the_least_entry_lets_it():
    """Two sources of three half sinks each, in halves: the first hands on one half of sink 0 and gets one of sink 2."""
    units = np.array([[2, 1, 0], [0, 1, 2]])
    plan_changes._move(np.array([[0.0, 5.0], [0.0, 0.0], [5.0, 0.0]]), units, [0, 1])
    assert units.tolist() == [[0, 1, 2], [2, 1, 0]]
    units = np.array([[1, 2, 0], [1, 0, 2]])
    plan_changes._move(np.array([[0.0, 5.0], [0.0, 0.0], [5.0, 0.0]]), units, [0, 1])
    assert units.tolist() == [[0, 2, 1], [2, 0, 1]]


def test_weights_are_means_over_each_sources_mass():
    plan = SparsePlan(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), np.array([2, 1, 1, 2]), np.zeros(2))
    assert plan.begins.tolist() == [0, 2, 4]
    np.testing.assert_allclose(plan.weights(3, np.dtype(float)).toarray(), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])
