"""Gradients of coresets against autograd, finite differences and hand-worked cases; steps against their formulas."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.config.settings.methods.transport import FedwadSettings
from knot_runner.papers.fedwad import descent as coreset
from knot_runner.transport.federated.fedwad import distance_between
from knot_runner.transport.federated.measure import Measure


def draws(*names: object) -> np.random.Generator:
    return np.random.default_rng(list("/".join(map(str, names)).encode()))


def points(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dimension))


def distance(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> float:
    b = np.full(len(y), 1 / len(y)) if weights is None else weights / weights.sum()
    return float(np.sqrt(ot.emd2(np.full(len(x), 1 / len(x)), b, ot.dist(x, y))))


@pytest.mark.parametrize("weights", [None, np.array([1, 2, 1, 1, 3, 1, 2]), np.linspace(0.1, 0.3, 7)])
def test_coreset_gradient_matches_autograd_and_finite_differences(weights):
    x, y = points(4, 3), points(7, 3, 1)
    found, gradient = coreset.gradient(x, Measure(y, weights))
    masses = Measure(y, weights).masses()
    plan = torch.from_numpy(ot.emd(np.full(4, 0.25), masses, ot.dist(x, y)))
    moving = torch.from_numpy(x).requires_grad_()
    loss = ((torch.cdist(moving, torch.from_numpy(y)) ** 2 * plan).sum() + coreset.SOFTENING).sqrt()
    loss.backward()
    assert found == pytest.approx(distance(x, y, masses), rel=1e-12)
    np.testing.assert_allclose(gradient, moving.grad.numpy(), rtol=1e-9, atol=1e-12)
    for i, j in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i, j] = 1e-6
        slope = (distance(x + step, y, masses) - distance(x - step, y, masses)) / 2e-6
        assert gradient[i, j] == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_gradient_draws_one_point_to_mean():
    y = np.array([[0.0, 0.0], [4.0, 0.0], [2.0, 6.0]])
    found, gradient = coreset.gradient(np.array([[2.0, 3.0]]), Measure(y))
    assert found == pytest.approx(np.sqrt((13 + 13 + 9) / 3))
    np.testing.assert_allclose(gradient, [[0.0, 1.0 / found]], atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000), st.floats(-50, 50))
def test_gradient_is_bounded_and_shift_invariant(k, n, d, seed, shift):
    """Its norm is at most 1 / sqrt(K), by Jensen: this is why descent does not diverge."""
    x, y = points(k, d, seed), points(n, d, seed + 1)
    found, gradient = coreset.gradient(x, Measure(y))
    assert np.linalg.norm(gradient) <= 1 / np.sqrt(k) + 1e-9
    moved, same = coreset.gradient(x + shift, Measure(y + shift))
    assert moved == pytest.approx(found, rel=1e-6, abs=1e-6)
    np.testing.assert_allclose(same, gradient, rtol=1e-5, atol=1e-6)


def test_federated_gradient_approximates_exact_gradient():
    x, y = points(20, 2), 0.5 * points(20, 2, 1) + [3.0, 1.0]
    options = FedwadSettings("approximate", 20, 20, 0.5, 1.0)
    value, federated = coreset.federated_gradient(x, y, options, draws)
    exact_value, exact = coreset.gradient(x, Measure(y))
    assert exact_value * (1 - 1e-9) <= value <= 1.02 * exact_value
    cosine = (federated * exact).sum() / np.linalg.norm(federated) / np.linalg.norm(exact)
    assert cosine > 0.99 and np.linalg.norm(federated) == pytest.approx(np.linalg.norm(exact), rel=0.05)


def test_federated_gradient_descent_finds_two_far_clusters():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-3, 0.1, (10, 2)), rng.normal(3, 0.1, (10, 2))])
    options = FedwadSettings("approximate", 4, 5, 0.5, 1.0)
    state = coreset.first_descent(2, 2, 1.0, draws("start"))
    for _ in range(60):
        _, gradient = coreset.federated_gradient(state.points, y, options, draws)
        state = coreset.descent_step(state, gradient, "adam", 0.2)
    centers = np.sort(state.points, axis=0)
    np.testing.assert_allclose(centers, [[-3, -3], [3, 3]], atol=0.3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_descent_steps_are_those_of_torch(optimizer):
    state = coreset.first_descent(3, 2, 1.0, draws())
    x = torch.from_numpy(state.points.copy()).requires_grad_()
    theirs = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]([x], lr=0.1)
    for t in range(1, 6):
        state = coreset.descent_step(state, points(3, 2, t), optimizer, 0.1)
        x.grad = torch.from_numpy(points(3, 2, t))
        theirs.step()
    np.testing.assert_allclose(state.points, x.detach().numpy(), rtol=1e-12)
    assert state.steps == 5


def test_first_descent_is_of_the_start_scale():
    assert (coreset.first_descent(4, 3, 0.0, draws()).points == 0).all()
    wide = coreset.first_descent(2000, 2, 5.0, draws())
    assert wide.points.std() == pytest.approx(5, rel=0.1) and (wide.first == 0).all() and wide.steps == 0


def test_federated_gradient_is_towards_the_interpolating_measure():
    """Of the first part of the distance alone: a client's samples enter through the last measure, no other way."""
    x, y = points(6, 2), points(9, 2, 1) + 2.0
    options = FedwadSettings("approximate", 4, 3, 0.2, 1.0)
    found = distance_between(Measure(x), Measure(y), options, draws)
    value, federated = coreset.federated_gradient(x, y, options, draws)
    assert value == found.value
    np.testing.assert_array_equal(federated, coreset.gradient(x, found.xi)[1])
    assert np.abs(federated - coreset.gradient(x, Measure(y))[1]).max() > 1e-3
