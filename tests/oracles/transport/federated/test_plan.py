"""Plans against linear programming by other means; the cap; distances of points."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linear_sum_assignment, linprog

from knot_runner.transport.federated import optimal_plan, squared_distances
from knot_runner.transport.federated import plan as plan_module
from tests.golden.messages import refuses
from tests.oracles.transport.federated.samples import SEEDS, SIZES, gaussian


def linear_programme(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    n, m = cost.shape
    marginals = np.vstack([np.kron(np.eye(n), np.ones(m)), np.kron(np.ones(n), np.eye(m))])
    return linprog(cost.ravel(), A_eq=marginals, b_eq=np.concatenate([a, b]), method="highs").fun


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SIZES, SIZES, SEEDS)
def test_plan_is_optimal_and_keeps_its_masses(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cost, a, b = rng.random((n, m)), rng.random(n) + 0.01, rng.random(m) + 0.01
    b *= a.sum() / b.sum()
    plan, value = optimal_plan(cost, a, b)
    assert plan.shape == (n, m) and (plan >= 0).all()
    assert np.allclose(plan.sum(1), a) and np.allclose(plan.sum(0), b)
    assert value == pytest.approx((plan * cost).sum()) == pytest.approx(linear_programme(cost, a, b))


@pytest.mark.parametrize("shape", [(40, 40), (60, 7), (7, 60)])
def test_optimal_plan_keeps_whole_masses_whole_and_sparse(shape: tuple[int, int]) -> None:
    n, m = shape
    a, b = np.full(n, float(m)), np.full(m, float(n))
    cost = np.random.default_rng(n).random(shape)
    plan, value = optimal_plan(cost, a, b)
    assert (plan == plan.round()).all() and (plan.sum(1) == a).all() and (plan.sum(0) == b).all()
    assert np.count_nonzero(plan) <= n + m - 1
    shared, mean = optimal_plan(cost)  # equal masses of sum 1
    assert np.allclose(shared, plan / (n * m)) and mean == pytest.approx(value / (n * m))


def test_optimal_plan_of_equal_sizes_is_assignment() -> None:
    cost = squared_distances(gaussian(50, 3, "x").points, gaussian(50, 3, "y").points)
    plan, value = optimal_plan(cost, np.ones(50), np.ones(50))
    rows, columns = linear_sum_assignment(cost)
    assert (plan[rows, columns] == 1).all() and value == pytest.approx(cost[rows, columns].sum())


@pytest.mark.parametrize("shape", [(30, 20), (20, 30)])
def test_optimal_plan_warns_at_the_pivot_cap(shape: tuple[int, int], monkeypatch) -> None:
    """So early, the plan does not carry all mass yet, and its cost may even be too low."""
    cost = np.random.default_rng(0).random(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, best = optimal_plan(cost)
    monkeypatch.setattr(plan_module, "PIVOTS", 5)
    monkeypatch.setattr(plan_module, "PIVOTS_PER_POINT", 0)
    with pytest.warns(RuntimeWarning, match="stopped after 5 pivots on 30 x 20"):
        _, rough = optimal_plan(cost)
    assert rough != pytest.approx(best, rel=0.1)


@pytest.mark.parametrize("d", [1, 16, 17, 300])
def test_squared_distances_equal_the_double_loop(d: int) -> None:
    x, y = gaussian(6, d, "x", offset=1e3).points, gaussian(4, d, "y", offset=1e3).points
    loop = [[sum((p - q) ** 2 for p, q in zip(first, second, strict=True)) for second in y] for first in x]
    assert np.allclose(squared_distances(x, y), loop, rtol=1e-12)
    assert np.allclose(squared_distances(x, x).diagonal(), 0, atol=1e-11) and (squared_distances(x, x) >= 0).all()
    with refuses():
        optimal_plan(squared_distances(np.full((3, 2), 1e200), np.full((3, 2), -1e200)))
