"""Fig. 2: distances against a fine grid and closed forms; steps against torch.optim.SGD."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from knot_runner.methods.temperature_probe import boundary_distances, stepped
from tests.unit.temperature.probed import CNN, HP, MODELS, SHAPE, images, model_of


def linear(weight):
    return lambda x: x.flatten(1) @ weight.T


@pytest.mark.parametrize("halvings", [1, 4, 8, 30])
def test_distance_of_a_linear_model_is_approached_from_above(halvings):
    """Two classes: the margin w x, w = w_0 - w_1, falls by epsilon |w|_1 along -sign(w), so epsilon = w x / |w|_1."""
    weight, (x, _) = torch.randn(2, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64), images(30)
    exact = (x.flatten(1) @ (weight[0] - weight[1])).abs() / (weight[0] - weight[1]).abs().sum()
    found = boundary_distances(linear(weight), x, replace(HP, attack_steps=halvings))
    assert (found >= exact * (1 - 1e-12)).all()
    assert (found - exact <= torch.clamp(exact, min=HP.attack_limit / 2**12) * 2.0**-halvings + 1e-12).all()


def test_distances_of_a_network_agree_with_a_fine_grid():
    """Wherever the decision changes once on the grid, or never; elsewhere only that it does change there."""
    model, (x, _) = model_of(CNN), images(12)
    found = boundary_distances(model, x, replace(HP, attack_steps=20))
    moved = x.clone().requires_grad_()
    logits = model(moved)
    decided = logits.argmax(1)
    loss = F.cross_entropy(logits, decided, reduction="sum")
    direction = torch.autograd.grad(loss, moved)[0].sign()
    sizes = torch.linspace(0, 4, 2001, dtype=torch.float64)[1:]
    compared = 0
    for i in range(len(x)):
        other = model(x[i] + sizes[:, None, None, None] * direction[i]).argmax(1) != decided[i]
        changes = int(other.diff().sum())
        if found[i].isfinite():
            near = torch.stack([found[i] * (1 - 1e-5), found[i]])[:, None, None, None]
            assert (model(x[i] + near * direction[i]).argmax(1) != decided[i]).tolist() == [False, True]
        if changes == 1 and other[-1]:
            compared += 1
            first = float(sizes[other.to(torch.int8).argmax()])
            assert first - 4 / 2000 - 1e-9 <= float(found[i]) <= first + 1e-6
        elif changes == 0 and not other[0]:
            assert found[i].isinf()
    assert compared >= 3


def test_distance_of_a_constant_and_of_a_saturated_model():
    """At logits 1000 apart the cross-entropy's own gradient is exactly 0 in float32; its sign is still known."""
    constant = boundary_distances(lambda x: x.flatten(1)[:, :2] * 0 + torch.eye(2)[0], torch.ones(3, *SHAPE), HP)
    assert constant.isinf().all()
    weight, x = torch.tensor([[1.0], [-1.0]]).expand(2, 128), torch.full((1, *SHAPE), 4.0)
    found = boundary_distances(linear(weight), x, replace(HP, attack_limit=8.0))
    assert float(found[0]) == pytest.approx(4.0, rel=2e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_of_sgd_on_each_image_alone(name):
    model, (x, y) = model_of(MODELS[name]), images(3)
    found = stepped(model, x, y, 0.25, 0.1)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    model.requires_grad_()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(len(x)):
        model.load_state_dict(start)
        optimiser.zero_grad()
        F.cross_entropy(model(x[i : i + 1]) / 0.25, y[i : i + 1]).backward()
        optimiser.step()
        for key, value in model.named_parameters():
            torch.testing.assert_close(found[key][i], value.detach(), rtol=1e-9, atol=1e-12)
