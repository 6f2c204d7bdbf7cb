"""The terms and the exact loss of KNOT's Theorem 5.2 against the sheet's numbers and oracles."""

import math

import numpy as np
import ot
import pytest
import torch

from knot_runner.methods.bound import (
    bernstein,
    constant_best,
    hoeffding,
    label_diameter,
    lipschitz_constant,
    normalised_weights,
    second_term,
    third_term,
    transport_losses,
    vacuous,
)
from knot_runner.transport import ground_cost
from knot_runner.transport.loss import exact_transport
from tests.golden.messages import refuses
from tests.unit.methods.bound_rows import TASKS, points_of, rows

#: The largest label distance, the number of labels, and third terms at delta .05: (N, printed, derived, sharp).
SHEET = {
    "sa": (4.0, 5, [(104_817, 0.338, 0.0302, 0.0151), (2_567, 2.16, 0.193, 0.0966)]),
    "erc": (1.8974, 5, [(21_680, 0.353, 0.0315, 0.0158), (3_744, 0.849, 0.0759, 0.0380)]),
    "nli": (1.4142, 3, [(3_200, 0.318, 0.0612, 0.0306)]),
}


@pytest.mark.parametrize("task", TASKS)
def test_the_largest_label_distance_and_third_terms(task):
    diameter, classes, cases = SHEET[task]
    assert label_diameter(points_of(task)) == pytest.approx(diameter, rel=1e-4)
    assert len(points_of(task)) == classes
    for texts, *terms in cases:
        for form, wanted in zip(("printed", "derived", "sharp"), terms, strict=True):
            assert float(f"{third_term(form, classes, diameter, texts):.3g}") == wanted
        empirical = 3 * diameter * math.sqrt(math.log(2 / 0.05) / (2 * texts))
        assert third_term("sharp_empirical", classes, diameter, texts) == pytest.approx(empirical)


def test_second_terms_by_hand():
    assert second_term("printed", 5, 4.0, 0.1) == pytest.approx(16.0)
    assert second_term("derived", 5, 4.0, 0.1) == pytest.approx(64.0)
    for form in ("sharp", "sharp_empirical"):
        assert second_term(form, 5, 4.0, 0.1) == pytest.approx(2.0)  # 32 times smaller than derived


def test_held_out_terms_by_hand():
    losses = np.array([0.0, 1.0, 2.0, 1.0])
    found = hoeffding(losses, 4.0, 21)
    assert (found.first, found.second) == (1.0, 0.0)
    assert found.third == pytest.approx(4 * math.sqrt(math.log(21 / 0.05) / 8)) and found.total == 1 + found.third
    found = bernstein(losses, 4.0, 21)
    log = math.log(42 / 0.05)
    assert found.second == pytest.approx(math.sqrt(2 * (2 / 3) * log / 4))
    assert found.third == pytest.approx(7 * 4 * log / 9)


def test_bound_is_vacuous_where_a_constant_or_any_loss_is_below_it():
    assert vacuous(4.0, 4.0, 0.5) == ["C_M", "constant"] and vacuous(0.6, 4.0, 0.5) == ["constant"]
    assert vacuous(0.4, 4.0, 0.5) == [] and vacuous(0.5, 4.0, 0.5) == ["constant"]


def test_weights_of_a_text_are_over_their_sum():
    weights = torch.tensor([[0.5, 0.5], [1.0, 3.0]])
    assert normalised_weights(weights).tolist() == [[0.5, 0.5], [0.25, 0.75]]
    with refuses():
        normalised_weights(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))


PLACES = {f"{task} {kind}": points_of(task, kind) for task in TASKS for kind in ("semantic", "onehot", "hybrid")}
PLACES |= {f"{n} anywhere": torch.from_numpy(np.random.default_rng(4).normal(size=(n, 3))) for n in (6, 8)}


@pytest.mark.parametrize("place", PLACES)
def test_exact_transport_is_that_of_pot_and_scales_rows_to_one(place):
    points, draws = PLACES[place], np.random.default_rng(3)
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


@pytest.mark.parametrize("task", TASKS)
def test_transport_losses_are_lipschitz_in_the_logits(task):
    """Never above C_M / (2 sqrt 2) in 10,000 pairs; near it where two labels that are farthest apart share the mass."""
    points, draws = points_of(task), np.random.default_rng(6)
    classes, diameter = len(points), label_diameter(points)
    q = rows(draws, 10_000, classes)
    logits, steps = (torch.from_numpy(draws.normal(size=(10_000, classes))) for _ in range(2))
    far = np.unravel_index(int(ground_cost(points).argmax()), (classes, classes))
    logits[5000:] *= 0.1
    logits[5000:, list(far)] += 12.0
    q[5000:] = 0
    q[5000:, far[0]] = 1
    steps[5000:] *= 0.1
    steps[5000:, far[0]] += 1
    steps[5000:, far[1]] -= 1
    steps *= torch.from_numpy(10.0 ** draws.uniform(-3, 1, (10_000, 1)))
    moved = logits + steps
    weights = torch.ones(10_000, 1)
    losses = [transport_losses(one.softmax(1), q[:, None], weights, points) for one in (logits, moved)]
    slopes = (losses[1] - losses[0]).abs() / steps.norm(dim=1)
    assert slopes.max() <= lipschitz_constant(diameter) * (1 + 1e-6)
    assert lipschitz_constant(diameter) == diameter / math.sqrt(8) and slopes.max() > 0.35 * diameter


def test_transport_losses_weigh_teachers_by_hand():
    line = torch.tensor([[0.0], [1.0], [3.0]])
    p = torch.tensor([[1.0, 0.0, 0.0]])
    q = torch.tensor([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    assert float(transport_losses(p, q, torch.tensor([[0.75, 0.25]]), line)[0]) == pytest.approx(1.5)


@pytest.mark.parametrize("task", ["sa", "nli"])
def test_the_best_constant_prediction(task):
    """No distribution of a fine grid, or drawn near the best one, is better; the value is that from below."""
    points, draws = points_of(task), np.random.default_rng(7)
    classes = len(points)
    q = rows(draws, 80, classes).reshape(40, 2, classes)
    q[:, 1] = 0.1 * q[:, 1] + 0.9 * torch.eye(classes)[0]  # the second teacher is another, and weighs little
    weights = normalised_weights(torch.from_numpy(draws.uniform([0.7, 0.1], [1.0, 0.4], (40, 2))))
    best, least = constant_best(q, weights, points)

    def loss(constant):
        return float(transport_losses(constant.expand(40, classes), q, weights, points).mean())

    assert least <= loss(best) <= least * (1 + 1.01e-4)
    near = (best + 0.05 * torch.from_numpy(draws.normal(size=(200, classes)))).clamp_min(0)
    for other in [*rows(draws, 300, classes, 1.0), *(near / near.sum(1, keepdim=True))]:
        assert loss(other) >= least - 1e-9
