"""Gradients of coresets against autograd, finite differences and hand-worked cases; steps against their formulas."""

import numpy as np
import ot
import pytest
import torch

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


def test_descent_steps_are_those_of_torch():
    state = coreset.first_descent(3, 2, draws())
    x = torch.from_numpy(state.points.copy()).requires_grad_()
    theirs = torch.optim.Adam([x], lr=0.1)
    for t in range(1, 6):
        state = coreset.descent_step(state, points(3, 2, t), 0.1, t)
        x.grad = torch.from_numpy(points(3, 2, t))
        theirs.step()
    np.testing.assert_allclose(state.points, x.detach().numpy(), rtol=1e-12)


def test_first_descent_is_standard_normal():
    state = coreset.first_descent(2000, 2, draws())
    assert state.points.std() == pytest.approx(1, rel=0.1) and (state.first == 0).all() and (state.second == 0).all()


def test_federated_gradient_is_towards_the_interpolating_measure():
    """Of the first part of the distance alone: a client's samples enter through the last measure, no other way."""
    x, y = points(6, 2), points(9, 2, 1) + 2.0
    options = FedwadSettings("approximate", 4, 3, 0.2, 1.0)
    found = distance_between(Measure(x), Measure(y), options, draws)
    value, federated = coreset.federated_gradient(x, y, options, draws)
    assert value == found.value
    np.testing.assert_array_equal(federated, coreset.gradient(x, found.xi)[1])
    assert np.abs(federated - coreset.gradient(x, Measure(y))[1]).max() > 1e-3
