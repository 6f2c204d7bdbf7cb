"""The semi-dual Newton method against independent solvers, and on inputs that break simpler ones."""

import numpy as np
import ot
import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet

from knot_runner.transport import ground_cost, newton, semi_dual

LINE = torch.arange(5.0, dtype=torch.float64)[:, None]
EPSILONS = [16.0, 1.0, 0.1, 0.01, 0.001, 0.0001]


def pairs(count: int, labels: int = 5, alpha: float = 0.5, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    p, q = Dirichlet(torch.full((labels,), alpha, dtype=torch.float64)).sample((2, count))
    return p, q


def places(dimension: int, labels: int = 5) -> Tensor:
    if dimension == 1:
        return torch.arange(float(labels), dtype=torch.float64)[:, None]
    return 4 * torch.rand(labels, dimension, generator=torch.Generator().manual_seed(dimension), dtype=torch.float64)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_reaches_the_tolerance_at_every_epsilon(dimension: int, epsilon: float) -> None:
    p, q = pairs(256)
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
def test_agrees_with_pot_sinkhorn(epsilon: float) -> None:
    p, q = pairs(6, seed=1)
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


@pytest.mark.parametrize("labels", [2, 3, 7, 12, 20])
@pytest.mark.parametrize("alpha", [5.0, 0.5, 0.05, 0.01])
def test_any_number_of_labels_and_any_peakedness(labels: int, alpha: float) -> None:
    p, q = pairs(64, labels, alpha)
    for points in (places(1, labels), places(3, labels), torch.eye(labels, dtype=torch.float64)):
        for epsilon in (1e-1, 1e-3):
            solved = semi_dual(p, q, ground_cost(points), epsilon, 1e-6)
            assert solved.marginal_error.max() < 1e-6
            assert all(t.isfinite().all() for t in (solved.value, solved.f, solved.g))


#: a label without mass may be nearer than the one that takes all, by more than 1e4 times the least epsilon
PLANE = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, -1.0], [3.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("points", [LINE, PLANE], ids=["line", "plane"])
def test_zeros_and_one_hots(points: Tensor, epsilon: float) -> None:
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


def test_potential_is_extrapolated_where_p_is_zero() -> None:
    q = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    cost, epsilon = ground_cost(places(1, 3)), 0.2
    solved = semi_dual(torch.tensor([[0.6, 0.4, 0.0]]), q, cost, epsilon, 1e-10)
    formula = -epsilon * torch.logsumexp((solved.g[:, None] - cost) / epsilon + q.log()[:, None], 2)
    assert torch.allclose(solved.f, formula, atol=1e-12)
    near = semi_dual(torch.tensor([[0.6, 0.4 - 1e-9, 1e-9]]), q, cost, epsilon, 1e-10)
    assert torch.allclose(solved.f, near.f, atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.5, 0.01])
def test_semi_dual_is_repeatable_and_independent_of_chunks(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = pairs(200)
    cost = ground_cost(LINE)
    whole, again = (semi_dual(p, q, cost, epsilon, 1e-9) for _ in range(2))
    assert torch.equal(whole.f, again.f) and torch.equal(whole.value, again.value)
    monkeypatch.setitem(newton.NUMBERS_AT_ONCE, np, 8 * 25 * 7)
    chunks = semi_dual(p, q, cost, epsilon, 1e-9)
    assert torch.allclose(whole.f, chunks.f, atol=1e-9)
    assert torch.equal(whole.iterations, chunks.iterations)


def test_semi_dual_reports_unconverged_and_accepts_empty_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "MAX_ITERATIONS", 2)
    monkeypatch.setattr(newton, "SMALL", 0.0)  # from the limit of small eps one step is enough
    solved = semi_dual(*pairs(20), ground_cost(LINE), 0.001, 1e-9)
    assert (solved.marginal_error > 1e-3).any() and (solved.iterations == 2).all()
    solved = semi_dual(torch.empty(0, 5), torch.empty(0, 5), ground_cost(LINE), 0.1, 1e-9)
    assert solved.value.shape == (0,) and solved.f.shape == (0, 5)


def symmetric_potential(p: Tensor, cost: Tensor, epsilon: float) -> Tensor:
    """f = g of OT_eps(p, p) [N, n], mean 0, by 300 averaged soft minima in the log domain: T(f) = f to 1e-15."""
    f = torch.zeros_like(p)
    for i in range(300):
        eps = max(epsilon, float(cost.max()) * 0.9**i)
        f = 0.5 * (f - eps * torch.logsumexp((f[:, None] - cost) / eps + p.log()[:, None], 2))
    return f - f.mean(1, keepdim=True)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01, 0.001])
@pytest.mark.parametrize("labels", [3, 5, 7])
def test_potential_where_p_is_q(labels: int, epsilon: float) -> None:
    for points in (places(1, labels), places(2, labels), torch.eye(labels, dtype=torch.float64)):
        p, _ = pairs(20, labels, alpha=0.3)
        cost = ground_cost(points)
        solved = semi_dual(p, 3 * p, cost, epsilon, 1e-9)  # equal up to the rounding of the sums
        assert torch.allclose(solved.f, symmetric_potential(p, cost, epsilon), rtol=0, atol=1e-9)
        assert torch.allclose(solved.f - solved.g, (solved.f - solved.g).mean(1, keepdim=True), atol=1e-9)
        assert solved.marginal_error.max() < 1e-9


def test_semi_dual_solves_mixed_batches_like_single_rows() -> None:
    """Rows of both kinds in one batch, and labels without mass, where f is the soft minimum of the others."""
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
def test_potential_near_p_is_q(step: float, potential: list[float]) -> None:
    """Far below the digits of p, what little moves decides the potential."""
    cost = ground_cost(torch.tensor([[0.0], [0.8], [2.0]], dtype=torch.float64))
    p = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64)
    q = p + torch.tensor([[step, 0.0, -step]], dtype=torch.float64)
    solved = semi_dual(p, q, cost, 0.03, 1e-9)
    assert torch.allclose(solved.f[0], torch.tensor(potential, dtype=torch.float64), atol=1e-6)
