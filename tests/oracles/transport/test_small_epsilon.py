"""The closed form of small eps: where it is exact, where it is not trusted, and what the whole loss costs."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet
from torch.utils._python_dispatch import TorchDispatchMode

from knot_runner.transport import Solver, ground_cost, newton, semi_dual, transport_loss
from knot_runner.transport.ascent import excess_of
from knot_runner.transport.small_epsilon import limit_potential
from knot_runner.transport.trees import transport_trees

#: labels on a line out of order, one-hot, in two superclasses, anywhere in a plane, and KNOT's emotions
PLACES = {
    "line": torch.tensor([[1.5], [0.0], [4.0], [2.2], [3.1], [6.0], [5.2]]),
    "onehot": torch.eye(7),
    "superclasses": torch.tensor([[1.0, 0, 0, 0, 0, 3], [0, 1, 0, 0, 0, 3], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]),
    "plane": torch.tensor([[0.0, 0.5], [1.0, 3.0], [2.5, 1.0], [4.0, 0.0], [3.0, 3.5]]),
    "emotions": torch.tensor([[-0.4, 0.8], [0.9, 0.2], [0.0, 0.0], [-0.9, -0.4], [0.4, 0.9]]),
}
SOLVER = Solver("newton", 0.001, 1e-6, 0.5)


def pairs(count: int, labels: int, alpha: float = 0.5) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    p, q = Dirichlet(torch.full((labels,), alpha, dtype=torch.float64)).sample((2, count))
    return p, q


def cost_of(place: str) -> Tensor:
    return ground_cost(PLACES[place].double())


@pytest.mark.parametrize("place", PLACES)
def test_limit_potential_is_the_solution(place: str) -> None:
    """At eps .001 the closed form alone has the marginals, in most rows of every label space."""
    p, q = pairs(200, len(PLACES[place]))
    cost = cost_of(place).numpy()
    columns = [rows.numpy().T for rows in (p, q)]
    h, least = limit_potential(columns[1], excess_of(*columns), transport_trees(cost), 0.001)
    exponent = (h - cost[..., None]) / 0.001
    shares = np.exp(exponent - exponent.max(1, keepdims=True))
    reached = (columns[0][:, None] * shares / shares.sum(1, keepdims=True)).sum(0)
    error = np.abs(reached - columns[1]).sum(0)
    assert np.median(error) < 1e-11
    assert (error < 1e-6).mean() > (0.6 if place == "plane" else 0.75)
    assert (least > 0).all() and (least <= 1).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("alpha", [0.5, 0.05])
def test_semi_dual_from_limit_matches_descending_epsilon(place, alpha, monkeypatch):
    p, q = pairs(200, len(PLACES[place]), alpha)
    cost = cost_of(place)
    short = semi_dual(p, q, cost, 0.001, 1e-9)
    monkeypatch.setattr(newton, "SMALL", 0.0)
    long = semi_dual(p, q, cost, 0.001, 1e-9)
    assert torch.allclose(short.value, long.value, rtol=0, atol=1e-13)
    assert torch.allclose(short.f, long.f, rtol=0, atol=1e-9)
    assert short.marginal_error.max() < 1e-9
    assert short.iterations.double().mean() < long.iterations.double().mean() / (3 if alpha == 0.5 else 2)


def test_semi_dual_starts_degenerate_rows_from_large_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flow over the middle edge: its difference of potential is not in the limit."""
    p = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    q = torch.tensor([[0.4, 0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4]], dtype=torch.float64)
    cost = ground_cost(torch.arange(4.0, dtype=torch.float64)[:, None])
    _, least = limit_potential(q.numpy().T, excess_of(p.numpy().T, q.numpy().T), transport_trees(cost.numpy()), 0.01)
    assert least[0] < 1e-12 < 0.1 < least[1]
    solved = semi_dual(p, q, cost, 0.01, 1e-9)
    monkeypatch.setattr(newton, "SMALL", 0.0)
    assert torch.allclose(solved.f, semi_dual(p, q, cost, 0.01, 1e-9).f, atol=1e-8)
    assert solved.iterations[0] > 4 > solved.iterations[1]


@pytest.mark.parametrize("epsilon", [1.0, 0.01, 0.001])
def test_torch_computes_what_numpy_does(epsilon: float) -> None:
    """As on a GPU with a batch that is too large for the host."""
    for place, alpha in (("line", 0.5), ("line", 0.05), ("plane", 0.5), ("onehot", 0.5)):
        p, q = pairs(150, len(PLACES[place]), alpha)
        p[0] = q[0]
        p[1], q[2] = torch.eye(len(PLACES[place]))[:2]
        cost = cost_of(place)
        host = semi_dual(p, q, cost, epsilon, 1e-9)
        columns = newton._solve(p.T + 0.0, q.T + 0.0, cost[..., None], cost.numpy(), epsilon, 1e-9)
        assert torch.allclose(columns[0], host.value, rtol=0, atol=1e-12)
        assert torch.allclose(columns[1].reshape(host.f.shape), host.f, rtol=0, atol=1e-9)
        assert torch.allclose(columns[2].reshape(host.g.shape), host.g, rtol=0, atol=1e-9)


def test_transport_trees_returns_none_for_unsuitable_costs() -> None:
    points = torch.rand(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert transport_trees(ground_cost(points).numpy()) is None
    assert transport_trees(np.zeros((3, 3))) is None


class Launches(TorchDispatchMode):
    """Counts torch operations, and those that bring a number to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.syncs = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.operations += 1
        self.syncs += "_local_scalar_dense" in str(function)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("texts", "teachers"), [(16, 3), (128, 5), (1024, 5)])
def test_transport_loss_takes_few_torch_operations(texts: int, teachers: int) -> None:
    q = pairs(texts * teachers, 5)[1].reshape(texts, teachers, 5).float()
    p = pairs(texts, 5)[0][:, None].float().requires_grad_()
    with Launches() as counted:
        transport_loss(p, q, torch.arange(5.0)[:, None], SOLVER).sum().backward()
    assert counted.operations <= 200
    assert counted.syncs <= 5
