"""Measures: what they take, masses in common units, and interpolation along the geodesic (Theorem 1)."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from knot_runner.transport.federated import (
    Client,
    Measure,
    Message,
    distance_between,
    interpolate,
    optimal_plan,
    server,
    squared_distances,
    wasserstein,
)
from knot_runner.transport.federated import plan as plan_module
from knot_runner.transport.federated.measure import common_masses
from tests.golden.messages import refuses
from tests.oracles.transport.federated.samples import SEEDS, SIZES, draws, emd, fedwad, gaussian

COUNTS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def of(counts):
    return Measure(np.zeros((len(counts), 1)), np.array(counts))


@given(COUNTS, COUNTS)
def test_common_masses_returns_whole_numbers_of_equal_sum(first, second):
    a, b, unit = common_masses(of(first), of(second))
    assert unit == a.sum() == b.sum() == math.lcm(sum(first), sum(second))
    assert (a == a.round()).all() and (b == b.round()).all()
    assert np.allclose(a / unit, of(first).masses(), atol=1e-15, rtol=1e-15)


def test_measure_counts_may_be_none_for_unequal_masses():
    assert Measure(np.zeros((4, 1))).counts.tolist() == [1, 1, 1, 1]
    uneven = Measure(np.zeros((2, 1)), np.array([0.3, 0.6]))
    assert uneven.counts is None and np.allclose(uneven.masses(), [1 / 3, 2 / 3])
    a, b, unit = common_masses(uneven, Measure(np.zeros((5, 1))))
    assert unit == 1 and np.allclose(a, [1 / 3, 2 / 3]) and np.allclose(b, 0.2)
    plain = Measure(np.zeros((2, 1), np.float32), [1, 2])
    assert (plain.points.dtype, plain.weights.dtype) == (np.float64, np.int64)


@pytest.mark.parametrize(("points", "weights"), [
    (np.zeros((0, 3)), None), (np.zeros((3, 0)), None), (np.zeros(3), None), ([[0.0], [math.nan]], None),
    ([[0.0], [math.inf]], None), (np.zeros((2, 1)), [1]), (np.zeros((2, 1)), [1, 0]),
    (np.zeros((2, 1)), [0.5, math.nan]),
])  # fmt: skip
def test_bad_samples_are_named(points, weights):
    with refuses():
        Measure(points, weights)


def test_measures_refuse_inexact_units_and_unequal_features():
    with refuses():
        common_masses(of([2**27 - 1]), of([2**27 + 1]))
    with refuses():
        distance_between(gaussian(4, 2), gaussian(4, 3), fedwad(), draws())


PLACES = st.floats(0.05, 0.95)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(SIZES, SIZES, SEEDS, PLACES, st.booleans())
def test_exact_measures_divide_the_distance(n, m, seed, t, counted):
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 9, n) if counted else rng.random(n) + 0.1
    first, second = Measure(gaussian(n, 2, seed, "a").points, weights), gaussian(m, 2, seed, "b", offset=1.0)
    between, distance = interpolate(first, second, t, "exact")
    assert distance == pytest.approx(emd(first, second)) == pytest.approx(wasserstein(second, first))
    assert wasserstein(first, between) == pytest.approx(t * distance)
    assert wasserstein(between, second) == pytest.approx((1 - t) * distance)
    assert between.size <= n + m - 1


@settings(deadline=None, max_examples=20, derandomize=True)
@given(SIZES, SEEDS, PLACES)
def test_theorem_1_modes_agree_for_equally_sized_samples(n, seed, t):
    first, second = gaussian(n, 3, seed, "a"), gaussian(n, 3, seed, "b")
    exact, approximate = (interpolate(first, second, t, mode)[0] for mode in ("exact", "approximate"))
    assert np.allclose(exact.points, approximate.points, atol=1e-14)
    assert exact.weights is None and approximate.weights is None


def test_unequal_masses_by_hand():
    """On a line: of mass .75 at 0, .25 goes to 1 and .5 to 3; mass .25 at 10 goes to 9."""
    first = Measure(np.array([[0.0], [10.0]]), np.array([3, 1]))
    second = Measure(np.array([[1.0], [3.0], [9.0]]), np.array([1, 2, 1]))
    between, distance = interpolate(first, second, 0.25, "approximate")
    assert between.points.ravel() == pytest.approx([0.25 * (1 + 3 + 3) / 3, 0.75 * 10 + 0.25 * 9])
    assert between.weights.tolist() == [3, 1]
    assert distance == pytest.approx(((1 + 9 + 9 + 1) / 4) ** 0.5)
    between, _ = interpolate(first, second, 0.5, "exact")
    assert between.points.ravel().tolist() == [0.5, 1.5, 9.5] and between.weights.tolist() == [1, 2, 1]


NEAR, FAR = Measure(np.array([[0.0, 0.0], [0.0, 10.0]])), Measure(np.array([[5.0, 10.0], [5.0, 0.0]]))


@pytest.mark.parametrize("mode", ["exact", "approximate"])
def test_interpolate_at_a_fifth_nears_first_measure(mode):
    between, distance = interpolate(NEAR, FAR, 0.2, mode)
    xi, apart = server.next_measure(Message(FAR), Message(NEAR), 0.2, mode)
    sent = Client(FAR, fedwad(mode=mode, t=0.2), "mu", draws()).interpolated(NEAR, 1, True)
    for measure in (between, xi, sent.measure):
        assert sorted(measure.points.tolist()) == [[1.0, 0.0], [1.0, 10.0]]
    assert distance == apart == sent.distance == 5.0 and sent.remainder == pytest.approx(4.0)
    assert (wasserstein(NEAR, between), wasserstein(between, FAR)) == (pytest.approx(1.0), pytest.approx(4.0))


@pytest.mark.parametrize("mode", ["exact", "approximate"])
def test_iteration_at_a_fifth_by_hand(mode):
    """On a line: the start x0 goes to .8 x0 + .2 mu and .8 x0 + .2 nu; the server then a fifth from nu's to mu's."""
    mu, nu = Measure(np.array([[100.0]])), Measure(np.array([[200.0]]))
    options = fedwad(mode=mode, support=1, iterations=1, t=0.2, start_scale=10.0)
    actual = distance_between(mu, nu, options, draws(), trace=True)
    (x0,), (x1,) = (measure.points[0] for measure in actual.measures)
    assert x0 == 10 * draws()("start").standard_normal((1, 1))[0, 0]
    assert x1 == pytest.approx(0.8 * x0 + 0.2 * (0.8 * 200 + 0.2 * 100))
    assert actual.value == pytest.approx((100 - x1) + (200 - x1))
    assert actual.server_only == [pytest.approx(100.0)]
    assert actual.sums == [pytest.approx(0.8 * (100 - x0) + 20.0 + 0.8 * (200 - x0))]


def test_counts_are_in_lowest_terms():
    pair = np.array([[0.0], [10.0]])
    assert interpolate(Measure(pair, np.array([6, 6])), Measure(pair), 0.5, "exact")[0].weights is None
    thirds = interpolate(Measure(pair, np.array([8, 4])), Measure(np.array([[5.0]])), 0.5, "exact")[0]
    assert thirds.weights.tolist() == [2, 1]


def test_masses_stay_whole_through_a_chain():
    """A hundred interpolations between 9, 6 and 10 points: all masses are whole parts of 90."""
    measure = gaussian(10, 2, "start")
    for step in range(100):
        measure, _ = interpolate(measure, gaussian(9 if step % 2 else 6, 2, step), 0.5, "exact")
        assert measure.counts is not None and 90 % measure.counts.sum() == 0 and measure.size <= 90


def linear_programme(cost, a, b):
    n, m = cost.shape
    marginals = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    return linprog(cost.ravel(), A_eq=marginals, b_eq=np.concatenate([a, b]), method="highs").fun


@settings(deadline=None, max_examples=20, derandomize=True)
@given(SIZES, SIZES, SEEDS)
def test_plan_is_optimal_and_keeps_its_masses(n, m, seed):
    rng = np.random.default_rng(seed)
    cost, a, b = rng.random((n, m)), rng.random(n) + 0.01, rng.random(m) + 0.01
    b *= a.sum() / b.sum()
    plan, value = optimal_plan(cost, a, b)
    assert plan.shape == (n, m) and (plan >= 0).all()
    assert np.allclose(plan.sum(1), a) and np.allclose(plan.sum(0), b)
    assert value == pytest.approx((plan * cost).sum()) == pytest.approx(linear_programme(cost, a, b))


@pytest.mark.parametrize("shape", [(40, 40), (60, 7), (7, 60)])
def test_optimal_plan_keeps_whole_masses_whole_and_sparse(shape):
    n, m = shape
    a, b = np.full(n, float(m)), np.full(m, float(n))
    cost = np.random.default_rng(n).random(shape)
    plan, value = optimal_plan(cost, a, b)
    assert (plan == plan.round()).all() and (plan.sum(1) == a).all() and (plan.sum(0) == b).all()
    assert np.count_nonzero(plan) <= n + m - 1
    shared, mean = optimal_plan(cost)  # equal masses of sum 1
    assert np.allclose(shared, plan / (n * m)) and mean == pytest.approx(value / (n * m))


@pytest.mark.parametrize("shape", [(30, 20), (20, 30)])
def test_optimal_plan_warns_at_the_pivot_cap(shape, monkeypatch):
    cost = np.random.default_rng(0).random(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, best = optimal_plan(cost)
    monkeypatch.setattr(plan_module, "PIVOTS", 5)
    monkeypatch.setattr(plan_module, "PIVOTS_PER_POINT", 0)
    with pytest.warns(RuntimeWarning, match="stopped after 5 pivots on 30 x 20") as warned:
        _, rough = optimal_plan(cost)
    assert rough != pytest.approx(best, rel=0.1) and len(warned) == 1  # POT's own warning is not shown


@pytest.mark.parametrize("d", [1, 16, 17, 300])
def test_squared_distances_equal_the_double_loop(d):
    x, y = gaussian(6, d, "x", offset=1e3).points, gaussian(4, d, "y", offset=1e3).points
    loop = [[sum((p - q) ** 2 for p, q in zip(first, second, strict=True)) for second in y] for first in x]
    assert np.allclose(squared_distances(x, y), loop, rtol=1e-12)
    assert np.allclose(squared_distances(x, x).diagonal(), 0, atol=1e-11) and (squared_distances(x, x) >= 0).all()
    with refuses():
        optimal_plan(squared_distances(np.full((3, 2), 1e200), np.full((3, 2), -1e200)))
