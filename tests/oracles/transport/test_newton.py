"""The semi-dual Newton method against independent solvers, and on inputs that break simpler ones."""

import numpy as np
import ot
import pytest
import torch
from torch.distributions import Dirichlet
from torch.utils._python_dispatch import TorchDispatchMode

from knot_runner.transport import Solver, ground_cost, newton, semi_dual, transport_loss
from knot_runner.transport.ascent import excess_of
from knot_runner.transport.small_epsilon import limit_potential
from knot_runner.transport.trees import transport_trees

LINE = torch.arange(5.0, dtype=torch.float64)[:, None]
EPSILONS = [16.0, 1.0, 0.1, 0.01, 0.001, 0.0001]


def pairs(count, labels=5, alpha=0.5, seed=0):
    torch.manual_seed(seed)
    p, q = Dirichlet(torch.full((labels,), alpha, dtype=torch.float64)).sample((2, count))
    return p, q


def places(dimension, labels=5):
    if dimension == 1:
        return torch.arange(float(labels), dtype=torch.float64)[:, None]
    return 4 * torch.rand(labels, dimension, generator=torch.Generator().manual_seed(dimension), dtype=torch.float64)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_reaches_the_tolerance_at_every_epsilon(dimension, epsilon):
    p, q = pairs(100)
    cost = ground_cost(places(dimension))
    solved = semi_dual(p, q, cost, epsilon, 1e-9)
    assert solved.marginal_error.max() < 1e-9
    assert solved.iterations.max() < 60
    product = p[:, :, None] * q[:, None, :]
    plan = product * ((solved.f[:, :, None] + solved.g[:, None, :] - cost) / epsilon).exp()
    assert torch.allclose(plan.sum(2), p, atol=1e-8) and torch.allclose(plan.sum(1), q, atol=1e-8)
    relative = (plan / product).log().nan_to_num(neginf=0.0)
    primal = (plan * (cost + epsilon * relative)).sum((1, 2))
    assert torch.allclose(primal, solved.value, atol=1e-7)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.03])
def test_agrees_with_pot_sinkhorn(epsilon):
    p, q = pairs(3, seed=1)
    cost = ground_cost(places(2))
    solved = semi_dual(p, q, cost, epsilon, 1e-10)
    for i in range(len(p)):
        problem = p[i].numpy(), q[i].numpy(), cost.numpy(), epsilon
        plan, log = ot.bregman.sinkhorn_log(*problem, numItermax=50_000, stopThr=1e-12, log=True)
        # POT penalizes sum P log P, eq. 1 KL(P | p x q): the same plan, another value, and f = eps log(u / p)
        product = np.outer(p[i], q[i])
        value = (plan * cost.numpy()).sum() + epsilon * (plan * np.log(plan / product)).sum()
        potential = epsilon * (log["log_u"] - p[i].log().numpy())
        assert float(solved.value[i]) == pytest.approx(value, abs=1e-8)
        assert solved.f[i].numpy() == pytest.approx(potential - potential.mean(), abs=1e-6)


@pytest.mark.parametrize("labels", [2, 7, 20])
@pytest.mark.parametrize("alpha", [5.0, 0.5, 0.01])
def test_any_number_of_labels_and_any_peakedness(labels, alpha):
    p, q = pairs(40, labels, alpha)
    for points in (places(1, labels), places(3, labels), torch.eye(labels, dtype=torch.float64)):
        for epsilon in (1e-1, 1e-3):
            solved = semi_dual(p, q, ground_cost(points), epsilon, 1e-6)
            assert solved.marginal_error.max() < 1e-6
            assert all(t.isfinite().all() for t in (solved.value, solved.f, solved.g))


#: a label without mass may be nearer than the one that takes all, by more than 1e4 times the least epsilon
PLANE = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, -1.0], [3.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("points", [LINE, PLANE], ids=["line", "plane"])
def test_zeros_and_one_hots(points, epsilon):
    units, (p, q) = torch.eye(5, dtype=torch.float64), pairs(25)
    left, right = units.repeat(5, 1), units.repeat_interleave(5, 0)
    cost = ground_cost(points)
    holes = [rows.scatter(1, torch.full((25, 1), j), 0.0) for rows, j in ((p, 1), (q, 3))]
    for a, b in ((left, q), (p, right), (left, right), tuple(holes), (p, p), (left, left)):
        solved = semi_dual(a, b, cost, epsilon, 1e-9)
        assert solved.marginal_error.max() < 1e-9
        assert all(t.isfinite().all() for t in (solved.value, solved.f, solved.g))
    forced = semi_dual(p, right, cost, epsilon, 1e-9)  # all mass goes to one label: the product is the only plan
    distance = cost[right.argmax(1)]
    assert torch.allclose(forced.value, (p * distance).sum(1))
    assert torch.allclose(forced.f, distance - distance.mean(1, keepdim=True))


@pytest.mark.parametrize("epsilon", [0.5, 0.01])
def test_semi_dual_is_repeatable_and_independent_of_chunks(epsilon, monkeypatch):
    p, q = pairs(200)
    cost = ground_cost(LINE)
    whole, again = (semi_dual(p, q, cost, epsilon, 1e-9) for _ in range(2))
    assert torch.equal(whole.f, again.f) and torch.equal(whole.value, again.value)
    monkeypatch.setattr(newton, "BYTES_AT_ONCE", 8 * 25 * 7)
    chunks = semi_dual(p, q, cost, epsilon, 1e-9)
    assert torch.allclose(whole.f, chunks.f, atol=1e-9)
    assert torch.equal(whole.iterations, chunks.iterations)


def test_semi_dual_reports_unconverged_and_accepts_empty_batches(monkeypatch):
    monkeypatch.setattr(newton, "MAX_ITERATIONS", 2)
    monkeypatch.setattr(newton, "SMALL", 0.0)  # from the limit of small eps one step is enough
    solved = semi_dual(*pairs(20), ground_cost(LINE), 0.001, 1e-9)
    assert (solved.marginal_error > 1e-3).any() and (solved.iterations == 2).all()
    solved = semi_dual(torch.empty(0, 5), torch.empty(0, 5), ground_cost(LINE), 0.1, 1e-9)
    assert solved.value.shape == (0,) and solved.f.shape == (0, 5)


def symmetric_potential(p, cost, epsilon):
    """f = g of OT_eps(p, p) [N, n], mean 0, by 300 averaged soft minima in the log domain: T(f) = f to 1e-15."""
    f = torch.zeros_like(p)
    for i in range(300):
        eps = max(epsilon, float(cost.max()) * 0.9**i)
        f = 0.5 * (f - eps * torch.logsumexp((f[:, None] - cost) / eps + p.log()[:, None], 2))
    return f - f.mean(1, keepdim=True)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("labels", [3, 7])
def test_potential_where_p_is_q(labels, epsilon):
    for points in (places(1, labels), places(2, labels), torch.eye(labels, dtype=torch.float64)):
        p, _ = pairs(20, labels, alpha=0.3)
        cost = ground_cost(points)
        solved = semi_dual(p, 3 * p, cost, epsilon, 1e-9)  # equal up to the rounding of the sums
        assert torch.allclose(solved.f, symmetric_potential(p, cost, epsilon), rtol=0, atol=1e-9)
        assert torch.allclose(solved.f - solved.g, (solved.f - solved.g).mean(1, keepdim=True), atol=1e-9)
        assert solved.marginal_error.max() < 1e-9


def test_semi_dual_solves_mixed_batches_like_single_rows():
    p, q = pairs(12, alpha=0.3)
    q = torch.where(torch.arange(12)[:, None] % 2 == 0, p, q).clone()
    p[4, 1] = q[4, 1] = 0.0
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    cost, epsilon = ground_cost(LINE), 0.01
    whole = semi_dual(p, q, cost, epsilon, 1e-9)
    for row in range(12):
        alone = semi_dual(p[row : row + 1], q[row : row + 1], cost, epsilon, 1e-9)
        assert torch.allclose(whole.f[row], alone.f[0], atol=1e-12)
    f = symmetric_potential(p[::2], cost, epsilon)
    assert torch.allclose(whole.f[::2], f, atol=1e-9)


#: labels at 0, .8 and 2; p and q differ by ``step`` at the ends; eps .03: f with mean 0 from 200-digit arithmetic
NEAR = [
    (2.0**-10, [-0.766900037191, -0.133372319737, 0.900272356928]),
    (2.0**-30, [-0.351089721420, -0.133333323455, 0.484423044875]),
    (2.0**-40, [-0.152986725138, -0.128412744512, 0.281399469650]),
]


@pytest.mark.parametrize(("step", "potential"), NEAR)
def test_potential_near_p_is_q(step, potential):
    cost = ground_cost(torch.tensor([[0.0], [0.8], [2.0]], dtype=torch.float64))
    p = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    q = p + torch.tensor([[step, 0.0, -step]], dtype=torch.float64)
    solved = semi_dual(p, q, cost, 0.03, 1e-9)
    assert torch.allclose(solved.f[0], torch.tensor(potential, dtype=torch.float64), atol=1e-6)


#: labels on a line out of order, one-hot, in two superclasses, anywhere in a plane, and KNOT's emotions
PLACES = {
    "line": torch.tensor([[1.5], [0.0], [4.0], [2.2], [3.1], [6.0], [5.2]]),
    "onehot": torch.eye(7),
    "superclasses": torch.tensor([[1.0, 0, 0, 0, 0, 3], [0, 1, 0, 0, 0, 3], [0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0]]),
    "plane": torch.tensor([[0.0, 0.5], [1.0, 3.0], [2.5, 1.0], [4.0, 0.0], [3.0, 3.5]]),
    "emotions": torch.tensor([[-0.4, 0.8], [0.9, 0.2], [0.0, 0.0], [-0.9, -0.4], [0.4, 0.9]]),
}
SOLVER = Solver("newton", 0.001, 1e-6, 0.5)


def cost_of(place):
    return ground_cost(PLACES[place].double())


@pytest.mark.parametrize("place", PLACES)
def test_limit_potential_is_the_solution(place):
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


def test_semi_dual_starts_degenerate_rows_from_large_epsilon(monkeypatch):
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


@pytest.mark.parametrize("p", [[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
@np.errstate(invalid="ignore")
def test_limit_potential_is_finite_and_low_where_no_mass_is(p):
    p, q = np.array(p)[:, None], np.array([[0.5], [0.5], [0], [0]])
    h, _ = limit_potential(q, excess_of(p, q), transport_trees(ground_cost(LINE[:4]).numpy()), 0.01)
    assert np.isfinite(h).all() and (h[2:] < -9e5).all()


def test_transport_trees_returns_none_for_unsuitable_costs():
    points = torch.rand(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert transport_trees(ground_cost(points).numpy()) is None
    assert transport_trees(np.zeros((3, 3))) is None


class Launches(TorchDispatchMode):
    """Counts torch operations, and those that bring a number to the host."""

    def __init__(self):
        super().__init__()
        self.operations = self.syncs = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.operations += 1
        self.syncs += "_local_scalar_dense" in str(function)
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("texts", "teachers"), [(16, 3), (128, 5), (1024, 5)])
def test_transport_loss_takes_few_torch_operations(texts, teachers):
    q = pairs(texts * teachers, 5)[1].reshape(texts, teachers, 5).float()
    p = pairs(texts, 5)[0][:, None].float().requires_grad_()
    with Launches() as counted:
        transport_loss(p, q, torch.arange(5.0)[:, None], SOLVER).sum().backward()
    assert counted.operations <= 200
    assert counted.syncs <= 5
