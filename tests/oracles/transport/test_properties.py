"""What holds for every pair of distributions, searched by hypothesis."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from knot_runner.transport import Solver, transport_loss

MASSES = st.one_of(st.just(0.0), st.floats(1e-12, 1.0), st.sampled_from([1e-30, 1e-6, 0.25, 0.5, 1.0]))
EPSILONS = st.sampled_from([16.0, 1.0, 0.1, 0.01, 0.001, 0.0001])
EXACT = Solver("exact", 0.0, 1e-9, 0.5)


@st.composite
def problems(draw: st.DrawFn, dimensions: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """p, q [n] with zeros and tiny masses, distinct points [n, d] on a grid."""
    n = draw(st.integers(2, 6))
    rows = [draw(st.lists(MASSES, min_size=n, max_size=n).filter(lambda row: sum(row) > 1e-3)) for _ in "pq"]
    d = draw(st.integers(1, dimensions))
    grid = st.lists(st.integers(-4, 4), min_size=d, max_size=d)
    points = draw(st.lists(grid, min_size=n, max_size=n, unique_by=tuple))
    p, q = (torch.tensor(row, dtype=torch.float64) for row in rows)
    return p / p.sum(), q / q.sum(), torch.tensor(points, dtype=torch.float64)


def newton(epsilon: float) -> Solver:
    return Solver("newton", epsilon, 1e-9, 0.5)


def value_and_gradient(p: Tensor, q: Tensor, points: Tensor, solver: Solver) -> tuple[Tensor, Tensor]:
    p = p.clone().requires_grad_()
    value = transport_loss(p, q, points, solver)
    value.backward()
    return value.detach(), p.grad


@settings(deadline=None, max_examples=80, derandomize=True)
@given(problems(), EPSILONS)
def test_value_is_symmetric_and_between_its_bounds(problem: tuple[Tensor, Tensor, Tensor], epsilon: float) -> None:
    p, q, points = problem
    value = float(transport_loss(p, q, points, newton(epsilon)))
    assert abs(value - float(transport_loss(q, p, points, newton(epsilon)))) < 1e-7
    w1 = float(transport_loss(p, q, points, EXACT))
    product = float(p @ torch.cdist(points, points) @ q)  # cost of the plan p x q, whose KL is 0
    assert w1 - 1e-7 <= value <= product + 1e-7


@settings(deadline=None, max_examples=80, derandomize=True)
@given(problems(), EPSILONS)
def test_gradient_is_finite_centred_and_a_supporting_slope(
    problem: tuple[Tensor, Tensor, Tensor], epsilon: float
) -> None:
    p, q, points = problem
    value, gradient = value_and_gradient(p, q, points, newton(epsilon))
    assert gradient.isfinite().all() and abs(float(gradient.sum())) < 1e-9
    # T is convex in p: every tangent lies below it
    elsewhere = torch.full_like(p, 1 / len(p))
    there = transport_loss(elsewhere, q, points, newton(epsilon))
    assert float(there) >= float(value + gradient @ (elsewhere - p)) - 1e-6


@settings(deadline=None, max_examples=40, derandomize=True)
@given(problems(), st.sampled_from([1.0, 0.1]), st.randoms(use_true_random=False))
def test_the_order_of_labels_does_not_matter(problem: tuple[Tensor, Tensor, Tensor], epsilon: float, random) -> None:
    p, q, points = problem
    order = list(range(len(p)))
    random.shuffle(order)
    value, gradient = value_and_gradient(p, q, points, newton(epsilon))
    moved, slope = value_and_gradient(p[order], q[order], points[order], newton(epsilon))
    assert abs(float(value - moved)) < 1e-8
    assert torch.allclose(gradient[order], slope, atol=1e-3)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(problems(dimensions=1))
def test_closed_form_on_the_line_is_the_linear_programme(problem: tuple[Tensor, Tensor, Tensor]) -> None:
    p, q, points = problem
    closed, gradient = value_and_gradient(p, q, points, Solver("line", 0.0, 1e-9, 0.5))
    assert abs(float(closed - transport_loss(p, q, points, EXACT))) < 1e-9
    assert float(gradient @ (p - q)) >= float(closed) - 1e-9  # <f, p> + <g, q> with g >= -f, where f is 1-Lipschitz
