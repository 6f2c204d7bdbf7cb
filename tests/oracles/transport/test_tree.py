"""Transport on trees: values against POT's linear programme, the gradient by its optimality and by differences."""

import numpy as np
import ot
import pytest
import torch

from knot_runner.data.images.load import one_hot, superclass_points
from knot_runner.transport import Solver, ground_cost, transport_loss
from knot_runner.transport.trees import tree_edges
from tests.golden.messages import refuses

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


def pairs(labels, count=40, seed=0):
    draw = np.random.default_rng(seed)
    p, q = (draw.dirichlet(np.full(labels, 0.3), count) for _ in range(2))
    p[0], q[0] = np.eye(labels)[0], np.eye(labels)[-1]
    q[1] = p[1]
    return torch.from_numpy(p), torch.from_numpy(q)


@pytest.mark.parametrize("name", FORESTS)
def test_tree_loss_and_gradient_solve_linear_programme(name):
    """It changes by at most the cost between two labels, and makes up the value (Kantorovich duality)."""
    points = torch.tensor(FORESTS[name], dtype=torch.float64)
    p, q = pairs(len(points))
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
