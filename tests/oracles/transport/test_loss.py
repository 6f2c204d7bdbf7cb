"""The loss: its solvers against each other and the libraries, its gradient, errors, and properties."""

import dataclasses
import doctest

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Dirichlet

from knot_runner.data.images.load import one_hot, superclass_points
from knot_runner.transport import (
    SOLVERS,
    Solver,
    TransportError,
    costs,
    ground_cost,
    loss,
    newton,
    support,
    transport_loss,
    trees,
)
from knot_runner.transport import transport_loss as transport
from knot_runner.transport.trees import tree_edges
from tests.golden.messages import refuses

LINE = torch.arange(-2.0, 3.0)[:, None]
PLANE = torch.tensor([[0.0, 0.5], [1.0, 3.0], [2.5, 1.0], [4.0, 0.0], [3.0, 3.5]])
NEWTON = Solver("newton", 0.001, 1e-9, 0.5)
EXACT, ON_LINE = Solver("exact", 0.0, 1e-9, 0.5), Solver("line", 0.0, 1e-9, 0.5)


def pairs(count, alpha=0.5, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    p, q = Dirichlet(torch.full((5,), alpha, dtype=dtype)).sample((2, count))
    return p, q


def value_and_gradient(p, q, points, solver):
    p = p.clone().requires_grad_()
    value = transport(p, q, points, solver)
    value.sum().backward()
    return value.detach(), p.grad


def places(name):
    return torch.eye(5) if name == "tree" else LINE


@pytest.mark.parametrize("points", [LINE, PLANE], ids=["line", "plane"])
def test_exact_solver_is_emd2(points):
    p, q = pairs(16, dtype=torch.float64)
    p[:4, 2], q[:4, 0] = 0.0, 0.0
    p, q = p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    value, gradient = value_and_gradient(p, q, points, EXACT)
    cost = ground_cost(points.double()).numpy()
    assert value.tolist() == pytest.approx([ot.emd2(a.numpy(), b.numpy(), cost) for a, b in zip(p, q, strict=True)])
    assert gradient.sum(1).abs().max() < 1e-12
    potentials = gradient[:, :, None] - gradient[:, None]
    assert (potentials.abs() <= torch.from_numpy(cost) + 1e-9).all()  # 1-Lipschitz, as W1's potentials are


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
def test_agrees_with_geomloss_near_its_limit(epsilon):
    p, q = pairs(128, alpha=2.0, dtype=torch.float64)
    solvers = Solver("newton", epsilon, 1e-9, 0.5), Solver("geomloss", epsilon, 1e-9, 0.99)
    ours, theirs = (value_and_gradient(p, q, PLANE, solver) for solver in solvers)
    assert float(theirs[0].mean() / ours[0].mean()) == pytest.approx(1, abs=5e-3)
    assert torch.allclose(ours[0], theirs[0], atol=0.03)
    centered = theirs[1] - theirs[1].mean(1, keepdim=True)
    assert torch.cosine_similarity(ours[1], centered).median() > 0.999


def test_published_schedule_falls_short():
    """geomloss at its default scaling, as published, on the sentiment labels (docs/papers/knot.md)."""
    p, q = pairs(512)
    truth, slope = value_and_gradient(p, q, LINE, ON_LINE)
    value, gradient = value_and_gradient(p, q, LINE, Solver("geomloss", 0.001, 1e-9, 0.5))
    assert 0.14 < 1 - float(value.mean() / truth.mean()) < 0.20
    assert 0.86 < float(torch.cosine_similarity(gradient, slope).mean()) < 0.94
    assert float(gradient.norm(dim=1).mean() / slope.norm(dim=1).mean()) < 0.75
    value, gradient = value_and_gradient(p, q, LINE, NEWTON)
    assert abs(1 - float(value.mean() / truth.mean())) < 1e-3
    assert float(torch.cosine_similarity(gradient, slope).min()) > 0.999


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
def test_gradient_is_the_derivative(epsilon):
    q = pairs(4, dtype=torch.float64)[1]
    logits = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    solver = Solver("newton", epsilon, 1e-12, 0.5)
    loss = lambda z: transport(z.softmax(1), q, PLANE, solver)  # noqa: E731
    assert torch.autograd.gradcheck(loss, logits, eps=1e-4, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", SOLVERS)
def test_broadcasts_and_sums_gradients_over_teachers(name):
    points = places(name)
    p, q = (rows[:, :4] / rows[:, :4].sum(1, keepdim=True) for rows in pairs(24))
    p, q, solver = p[:8, None], q.reshape(8, 3, 4), Solver(name, 0.1, 1e-9, 0.9)
    value, gradient = value_and_gradient(p, q, points[:4], solver)
    assert value.shape == (8, 3) and gradient.shape == p.shape and value.dtype == torch.float32
    parts = [value_and_gradient(p[:, 0], q[:, k], points[:4], solver) for k in range(3)]
    assert torch.allclose(value, torch.stack([v for v, _ in parts], 1), atol=1e-6)
    assert torch.allclose(gradient[:, 0], sum(g for _, g in parts), atol=1e-5)
    assert transport(p[0, 0], q[0, 0], points[:4], solver).shape == ()


@pytest.mark.parametrize("name", SOLVERS)
def test_gradient_is_finite_and_centered_on_faces(name):
    p, q = torch.eye(5).repeat(5, 1), torch.eye(5).repeat_interleave(5, 0)
    _, gradient = value_and_gradient(p, q, places(name), Solver(name, 0.01, 1e-9, 0.5))
    assert gradient.isfinite().all()
    assert gradient.sum(1).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["newton", "tree"])
def test_costs_and_tree_are_made_once_for_their_points(name, monkeypatch):
    points, solver = places(name).clone(), Solver(name, 0.001, 1e-9, 0.5)
    first = transport(*pairs(8), points, solver)
    monkeypatch.setattr(costs, "ground_cost", None)
    monkeypatch.setattr(trees, "tree_edges", None)
    assert torch.equal(transport(*pairs(8), points, solver), first)


def test_unconverged_rows_and_planes_without_a_line_raise(monkeypatch):
    monkeypatch.setattr(newton, "MAX_ITERATIONS", 2)
    monkeypatch.setattr(newton, "SMALL", 0.0)
    with pytest.raises(TransportError, match=r"\d+ of 20 transport problems did not converge.*epsilon=0.001"):
        transport(*pairs(20), LINE, NEWTON)
    with refuses():
        transport(*pairs(2), PLANE, ON_LINE)


def test_rows_near_the_tolerance_are_results(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = pairs(3)
    solved = loss.semi_dual(p, q, ground_cost(LINE.double()), 0.001, 1e-9)
    errors = torch.tensor([0.0, 0.999e-6, 0.0])
    monkeypatch.setattr(loss, "semi_dual", lambda *given: dataclasses.replace(solved, marginal_error=errors))
    assert torch.allclose(transport(p, q, LINE, NEWTON).double(), solved.value)
    errors[1] = 1.001e-6
    with pytest.raises(TransportError, match="1 of 3 transport problems did not converge"):
        transport(p, q, LINE, NEWTON)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(
    "row", [[-0.1, 0.5, 0.2, 0.2, 0.2], [0.0] * 5, [float("nan")] + [0.25] * 4, [0.2022] * 5, [0.1978] * 5]
)
def test_rows_that_are_no_probabilities_raise(row, name):
    p, q = pairs(3)
    q[1] = torch.tensor(row)
    with pytest.raises(TransportError, match="1 of 3 rows of q"):
        transport(p, q, LINE, Solver(name, 0.1, 1e-9, 0.5))
    with pytest.raises(ValueError, match="one entry for each of the 4 points"):
        transport(p, q, LINE[:4], NEWTON)


def test_rows_within_a_hundredth_of_1_are_scaled_to_it() -> None:
    p, q = pairs(16)
    expected, scaled = transport(p, q, LINE, EXACT), transport(0.991 * p, 1.009 * q, LINE, EXACT)
    assert torch.allclose(scaled, expected, atol=1e-6)


def test_value_and_gradient_isolate_nan_rows():
    p, q = pairs(3)
    p[1, 2] = float("nan")
    value, gradient = value_and_gradient(p, q, LINE, NEWTON)
    assert value.isnan().tolist() == [False, True, False]
    assert gradient.isnan().all(1).tolist() == [False, True, False]
    assert gradient[[0, 2]].isfinite().all()


def test_supports():
    one_hot, hybrid = support(LINE, "onehot"), support(LINE, "hybrid")
    assert support(LINE, "semantic") is LINE
    off = ~torch.eye(5, dtype=torch.bool)
    assert torch.allclose(ground_cost(one_hot)[off], torch.tensor(2.0).sqrt())
    assert torch.allclose(ground_cost(hybrid)[off] ** 2, 2 + ground_cost(LINE)[off] ** 2)
    assert hybrid.shape == (5, 6) and ground_cost(hybrid).diagonal().eq(0).all()


@pytest.mark.parametrize("module", [loss, costs])
def test_examples_in_the_docstrings(module):
    results = doctest.testmod(module, extraglobs={"torch": torch, "Solver": Solver})
    assert results.attempted > 0 == results.failed


MASSES = st.one_of(st.just(0.0), st.floats(1e-12, 1.0), st.sampled_from([1e-30, 1e-6, 0.25, 0.5, 1.0]))
EPSILONS = st.sampled_from([16.0, 1.0, 0.1, 0.01, 0.001, 0.0001])


@st.composite
def problems(draw, dimensions=3):
    """p, q [n] with zeros and tiny masses, distinct points [n, d] on a grid."""
    n = draw(st.integers(2, 6))
    rows = [draw(st.lists(MASSES, min_size=n, max_size=n).filter(lambda row: sum(row) > 1e-3)) for _ in "pq"]
    d = draw(st.integers(1, dimensions))
    grid = st.lists(st.integers(-4, 4), min_size=d, max_size=d)
    points = draw(st.lists(grid, min_size=n, max_size=n, unique_by=tuple))
    p, q = (torch.tensor(row, dtype=torch.float64) for row in rows)
    return p / p.sum(), q / q.sum(), torch.tensor(points, dtype=torch.float64)


def newton_at(epsilon):
    return Solver("newton", epsilon, 1e-9, 0.5)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(problems(), EPSILONS)
def test_transport_gradient_is_centered_subgradient(problem, epsilon):
    p, q, points = problem
    value, gradient = value_and_gradient(p, q, points, newton_at(epsilon))
    assert gradient.isfinite().all() and abs(float(gradient.sum())) < 1e-9
    # T is convex in p: every tangent lies below it
    elsewhere = torch.full_like(p, 1 / len(p))
    there = transport(elsewhere, q, points, newton_at(epsilon))
    assert float(there) >= float(value + gradient @ (elsewhere - p)) - 1e-6


@settings(deadline=None, max_examples=30, derandomize=True)
@given(problems(dimensions=1))
def test_line_solver_equals_the_linear_programme(problem):
    p, q, points = problem
    closed, gradient = value_and_gradient(p, q, points, Solver("line", 0.0, 1e-9, 0.5))
    assert abs(float(closed - transport(p, q, points, EXACT))) < 1e-9
    assert float(gradient @ (p - q)) >= float(closed) - 1e-9  # <f, p> + <g, q> with g >= -f, where f is 1-Lipschitz


TREE = Solver("tree", 0.0, 1e-9, 0.5)
GROUPS = {"animals": ["cat", "dog", "hen"], "cars": ["bus"], "plants": ["oak", "elm"]}
CLASSES = ["cat", "bus", "oak", "dog", "elm", "hen"]
#: Of squared distances; levels: eight labels, 1 apart in pairs, 3 in fours and 10 otherwise.
LEVELS = (np.eye(8), 1 / 2), (np.repeat(np.eye(4), 2, 0), (9 - 1) / 2), (np.repeat(np.eye(2), 4, 0), (100 - 9) / 2)
FORESTS = {
    "one-hot": one_hot(5),
    "superclasses": superclass_points(CLASSES, GROUPS),
    "two": [[0.0, 0.0], [3.0, 4.0]],
    "three levels": np.hstack([part * square**0.5 for part, square in LEVELS]).tolist(),
}


def sparse_pairs(labels, count=40, seed=0):
    draw = np.random.default_rng(seed)
    p, q = (draw.dirichlet(np.full(labels, 0.3), count) for _ in range(2))
    p[0], q[0] = np.eye(labels)[0], np.eye(labels)[-1]
    q[1] = p[1]
    return torch.from_numpy(p), torch.from_numpy(q)


@pytest.mark.parametrize("name", FORESTS)
def test_tree_loss_and_gradient_solve_linear_programme(name):
    """It changes by at most the cost between two labels, and makes up the value (Kantorovich duality)."""
    points = torch.tensor(FORESTS[name], dtype=torch.float64)
    p, q = sparse_pairs(len(points))
    cost = ground_cost(points).numpy()
    wanted = [ot.emd2(a / a.sum(), b / b.sum(), cost) for a, b in zip(p.numpy(), q.numpy(), strict=True)]
    p.requires_grad_()
    value = transport_loss(p, q, points, TREE)
    np.testing.assert_allclose(value.detach().numpy(), wanted, atol=1e-6)
    (f,) = torch.autograd.grad(value.sum(), p)
    assert ((f[:, :, None] - f[:, None]) - ground_cost(points)).max() < 1e-9
    torch.testing.assert_close((f * (p - q)).sum(1), value, atol=1e-9, rtol=0)
    torch.testing.assert_close(f.sum(1), torch.zeros(len(f), dtype=f.dtype), atol=1e-9, rtol=0)


@pytest.mark.parametrize("points", [[[0.0], [1.0], [2.0]], [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
def test_tree_edges_refuses_non_leaf_points(points):
    with refuses():
        tree_edges(ground_cost(torch.tensor(points, dtype=torch.float64)))


def test_edges_of_superclasses():
    weights, below = tree_edges(ground_cost(torch.tensor(superclass_points(CLASSES, GROUPS), dtype=torch.float64)))
    edges = {tuple(row) for row in below.int().tolist()}
    leaves, groups = set(map(tuple, np.eye(6, dtype=int).tolist())), {(1, 0, 0, 1, 0, 1), (0, 0, 1, 0, 1, 0)}
    assert edges == leaves | groups  # the group of one label has the edge of its leaf twice
    assert [round(float(weight), 9) for weight in weights] == [0.5] * 9
