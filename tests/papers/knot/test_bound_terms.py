"""KNOT's Theorem 5.2: terms and exact loss against the sheet's numbers and oracles, and what it promises."""

import itertools
import math
from dataclasses import replace

import numpy as np
import ot
import pytest
import torch

from knot_runner import compose
from knot_runner.config.settings.networks import CustomSettings, MlpSettings
from knot_runner.models.network import Network
from knot_runner.papers.knot import bound_terms as bound
from knot_runner.transport import ground_cost, support
from knot_runner.transport.loss import exact_transport
from tests.golden.messages import refuses

#: Tasks whose labels have coordinates.
TASKS = ("sa", "erc", "nli")


def points_of(task, kind="semantic"):
    (job,) = compose([f"task={task}"])
    return support(torch.tensor(job.settings.task.labels.coordinates, dtype=torch.float64), kind)


def rows(draws, count, classes, sharpness=0.5):
    made = torch.from_numpy(draws.dirichlet(np.full(classes, sharpness), count))
    return made / made.sum(1, keepdim=True)


#: The largest label distance, the number of labels, and third terms at delta .05: (N, printed, derived, sharp).
SHEET = {
    "sa": (4.0, 5, [(104_817, 0.338, 0.0302, 0.0151), (2_567, 2.16, 0.193, 0.0966)]),
    "erc": (1.8974, 5, [(21_680, 0.353, 0.0315, 0.0158), (3_744, 0.849, 0.0759, 0.0380)]),
    "nli": (1.4142, 3, [(3_200, 0.318, 0.0612, 0.0306)]),
}


@pytest.mark.parametrize("task", TASKS)
def test_label_diameter_and_third_terms_match_sheet(task):
    diameter, classes, cases = SHEET[task]
    assert bound.label_diameter(points_of(task)) == pytest.approx(diameter, rel=1e-4)
    assert len(points_of(task)) == classes
    for texts, *terms in cases:
        for form, wanted in zip(("printed", "derived", "sharp"), terms, strict=True):
            assert float(f"{bound.third_term(form, classes, diameter, texts):.3g}") == wanted
        empirical = 3 * diameter * math.sqrt(math.log(2 / 0.05) / (2 * texts))
        assert bound.third_term("sharp_empirical", classes, diameter, texts) == pytest.approx(empirical)


def test_second_terms_by_hand():
    assert bound.second_term("printed", 5, 4.0, 0.1) == pytest.approx(16.0)
    assert bound.second_term("derived", 5, 4.0, 0.1) == pytest.approx(64.0)
    for form in ("sharp", "sharp_empirical"):
        assert bound.second_term(form, 5, 4.0, 0.1) == pytest.approx(2.0)  # 32 times smaller than derived
    assert bound.lipschitz_constant(4.0) == pytest.approx(math.sqrt(2))


def test_held_out_terms_by_hand():
    losses = np.array([0.0, 1.0, 2.0, 1.0])
    found = bound.hoeffding(losses, 4.0, 21)
    assert (found.first, found.second) == (1.0, 0.0)
    assert found.third == pytest.approx(4 * math.sqrt(math.log(21 / 0.05) / 8)) and found.total == 1 + found.third
    found = bound.bernstein(losses, 4.0, 21)
    log = math.log(42 / 0.05)
    assert found.second == pytest.approx(math.sqrt(2 * (2 / 3) * log / 4))
    assert found.third == pytest.approx(7 * 4 * log / 9)


def test_vacuous_lists_losses_not_above_bound():
    assert bound.vacuous(4.0, 4.0, 0.5) == ["C_M", "constant"] and bound.vacuous(0.6, 4.0, 0.5) == ["constant"]
    assert bound.vacuous(0.4, 4.0, 0.5) == [] and bound.vacuous(0.5, 4.0, 0.5) == ["constant"]


def test_normalized_weights_sum_to_one_per_text():
    weights = torch.tensor([[0.5, 0.5], [1.0, 3.0]])
    assert bound.normalized_weights(weights).tolist() == [[0.5, 0.5], [0.25, 0.75]]
    with refuses():
        bound.normalized_weights(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))


PLACES = [*((task, kind) for task in TASKS for kind in ("semantic", "onehot", "hybrid")), (6, "random"), (8, "random")]


@pytest.mark.parametrize(("task", "kind"), PLACES)
def test_exact_transport_matches_pot_and_normalizes_rows(task, kind):
    draws = np.random.default_rng(3)
    is_random = kind == "random"
    points = torch.from_numpy(np.random.default_rng(4).normal(size=(task, 3))) if is_random else points_of(task, kind)
    p, q = (rows(draws, 200, len(points)) for _ in range(2))
    cost = ground_cost(points).numpy()
    values, potentials = exact_transport(p, q, points)
    wanted = np.array([ot.emd2(a, b, cost) for a, b in zip(p.numpy(), q.numpy(), strict=True)])
    np.testing.assert_allclose(values.numpy(), wanted, atol=1e-9)
    np.testing.assert_allclose((potentials * (p - q)).sum(1).numpy(), wanted, atol=1e-9)
    apart = (potentials[:, :, None] - potentials[:, None, :]).numpy()
    assert (apart <= cost + 1e-9).all()
    scaled = exact_transport(3 * p, p.sum() * q, points)
    np.testing.assert_allclose(scaled[0].numpy(), values.numpy(), atol=1e-12)
    np.testing.assert_allclose(scaled[1].numpy(), potentials.numpy(), atol=1e-9)


def test_transport_losses_weigh_teachers_by_hand():
    line = torch.tensor([[0.0], [1.0], [3.0]])
    p = torch.tensor([[1.0, 0.0, 0.0]])
    q = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    assert float(bound.transport_losses(p, q, torch.tensor([[0.75, 0.25]]), line)[0]) == pytest.approx(1.5)


@pytest.mark.parametrize("task", ["sa", "nli"])
def test_constant_best_is_the_least_loss(task):
    """No distribution of a fine grid, or drawn near the best one, is better; the value is that from below."""
    points, draws = points_of(task), np.random.default_rng(7)
    classes = len(points)
    q = rows(draws, 80, classes).reshape(40, 2, classes)
    q[:, 1] = 0.1 * q[:, 1] + 0.9 * torch.eye(classes)[0]  # the second teacher is another, and weighs little
    weights = bound.normalized_weights(torch.from_numpy(draws.uniform([0.7, 0.1], [1.0, 0.4], (40, 2))))
    best, least = bound.constant_best(q, weights, points)

    def loss(constant):
        return float(bound.transport_losses(constant.expand(40, classes), q, weights, points).mean())

    assert least <= loss(best) <= least * (1 + 1.01e-4)
    near = (best + 0.05 * torch.from_numpy(draws.normal(size=(200, classes)))).clamp_min(0)
    for other in [*rows(draws, 300, classes, 1.0), *(near / near.sum(1, keepdim=True))]:
        assert loss(other) >= least - 1e-9


def test_last_layer_complexity_estimates_supremum_over_class():
    """Brute force over all signs of six texts and 2,000 directions of w in the plane."""
    draws = np.random.default_rng(8)
    features, head = torch.from_numpy(draws.normal(size=(6, 2))), torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    angles = np.linspace(0, 2 * np.pi, 2000, endpoint=False)
    ball = 5.0 * np.stack([np.cos(angles), np.sin(angles)])
    signs = np.array(list(itertools.product((-1, 1), repeat=6)))
    wanted = (signs @ features.numpy() @ ball / 6).max(1).mean()
    found = bound.last_layer_complexity(features, head, torch.Generator().manual_seed(0))
    assert found["norm"] == 5.0 and 0 < found["error"] < 0.1 * found["value"]
    assert abs(found["value"] - wanted) < 4 * found["error"]
    assert found["upper"] == pytest.approx(5 / 6 * float(features.square().sum().sqrt())) and found["upper"] > wanted
    again = bound.last_layer_complexity(features, head, torch.Generator().manual_seed(0))
    other = bound.last_layer_complexity(features, head, torch.Generator().manual_seed(1))
    assert again == found and other["value"] != found["value"]


def test_undeclared_explains_models_without_declared_class():
    own = CustomSettings(**{"kind": "custom", "name": "mine", "target": "x:y", "head": "out"})
    assert "function class" in bound.undeclared(Network(own, (1, 8, 8), 3))
    dense = MlpSettings("mlp", "dense", [4], "softmax")
    assert "ends in a softmax" in bound.undeclared(Network(dense, (1, 8, 8), 3))
    assert bound.undeclared(Network(replace(dense, output="logits"), (1, 8, 8), 3)) == ""
