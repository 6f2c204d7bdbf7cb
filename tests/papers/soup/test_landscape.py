"""Landscapes: the plane by hand, losses at its models as theirs, barriers."""

import pytest
import torch
import torch.nn.functional as F

from knot_runner.methods.personalization import finetune
from knot_runner.methods.personalization.contract import PersonalFederation
from knot_runner.papers.soup import landscape
from knot_runner.papers.soup.landscape import Plane, barrier
from knot_runner.papers.soup.settings import LandscapeSettings
from tests.changed_settings import built
from tests.unit.methods.federated.worlds import make_world, settings, with_rows


def test_plane_runs_through_three_models():
    plane = Plane.of(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 1.0]), torch.tensor([2.0, 4.0, 1.0]))
    assert plane.first.tolist() == [2, 0, 0] and plane.second.tolist() == [0, 2, 0]
    assert plane.place(torch.tensor([2.0, 4.0, 1.0])) == pytest.approx((0.5, 1.5, 0.0))
    assert plane.place(torch.tensor([1.0, 1.0, 2.0])) == pytest.approx((0.0, 0.0, 0.5))
    assert plane.at(0.5, -1.0, torch.float64).tolist() == [2, -1, 1]


def test_plane_of_collinear_models_lacks_second_direction():
    plane = Plane.of(torch.zeros(2), torch.tensor([1.0, 1.0]), torch.tensor([0.25, 0.25]))
    assert plane.second.norm() < 1e-12
    assert plane.place(torch.tensor([0.5, 0.5])) == pytest.approx((0.5, 0.0, 0.0))


def test_barriers_by_hand():
    assert barrier(torch.tensor([2.0, 2.5, 1.0])) == pytest.approx(1.0)
    assert barrier(torch.tensor([2.0, 1.0, 1.0])) == pytest.approx(-0.5)
    assert barrier(torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)) == pytest.approx(0.0)


def test_landscape_finish_matches_losses_of_plane_models(monkeypatch):
    monkeypatch.setattr(landscape, "drawn", lambda *_: [3, 1])
    world = make_world([5])
    begun = world.federation
    federation = PersonalFederation.after(begun, settings(), begun.start_of)
    plane = {"kind": "landscape", "between": [2, 1], "grid": 5, "margin": 0.0}
    config = built(LandscapeSettings, "base/personalization/finetune.yaml", lr=0.3, epochs=4, checkpoints=4, **plane)
    asked = []

    def losses(client, models):
        asked.append(client)
        return torch.stack([
            torch.stack([_loss(world, model.weights, rows) for rows in federation.rows("test")]) for model in models
        ])  # fmt: skip

    state, round = finetune.init(config, federation), 0
    while requests := landscape.plan(config, state, federation, round):
        state, _ = landscape.fold(config, state, federation, round, requests, world.engine.train(requests))
        round += 1
    assert round == landscape.landscape_rounds(config, federation) == 8
    arrays, facts = landscape.finish(config, federation, state, losses)
    assert [one["client"] for one in facts["landscape"]] == [3, 1] and set(asked) == {1, 3}
    assert facts["barrier"] == max(one["barrier"] for one in facts["landscape"])
    for client, between in ((3, 2), (1, 1)):
        own = {
            name: arrays[f"landscape/{client}/{name}"] for name in ("x", "y", "loss", "path", "path_loss", "segment")
        }
        path = [federation.model.weights, *(state[f"path/{client}/{step}"] for step in range(1, 5))]
        plane = Plane.of(path[0], path[-1], path[between])
        assert own["path"][:, 2][[0, between, 4]].abs().max() < 1e-12 and own["path"][0].abs().max() == 0
        for step, theta in enumerate(path):
            each = [float(_loss(world, theta, federation.clients[other].test)) for other in range(5)]
            others = sum(each[:client] + each[client + 1 :]) / 4
            assert own["path_loss"][step].tolist() == pytest.approx([each[client], others], abs=1e-12)
        for step in (0, between, 4):  # where the plane has these three, it has their losses
            theta = plane.at(*own["path"][step, :2].tolist(), torch.float64)
            assert float(_loss(world, theta, federation.clients[client].test)) == pytest.approx(
                float(own["path_loss"][step, 0]), abs=1e-6
            )
        ends = own["path_loss"][[0, -1]]
        torch.testing.assert_close(own["segment"][[0, -1]], ends, rtol=0, atol=1e-9)
        for i, j in ((0, 0), (2, 3), (4, 1)):
            theta = plane.at(float(own["x"][j]), float(own["y"][i]), torch.float64)
            assert float(own["loss"][i, j, 0]) == pytest.approx(
                float(_loss(world, theta, federation.clients[client].test))
            )


def test_landscape_drawn_picks_clients_with_largest_gains():
    world = make_world([])
    begun = world.federation
    valid = [torch.arange(4), torch.arange(8), torch.arange(2), torch.arange(5), torch.arange(4)]
    federation = PersonalFederation.after(with_rows(begun, valid=valid), settings(), begun.start_of)
    state = {"record/valid": torch.tensor([[1, 1, 0, 0, 1], [9, 9, 9, 9, 9], [2, 5, 1, 1, 3]])}
    assert landscape.drawn(federation, state) == [1, 2]  # gains .25, .5, .5, .2, .5: of equal ones the first two


def _loss(world, weights, rows):
    """Mean cross-entropy of an MLP of one hidden layer, by hand."""
    fields = world.federation.layout.parameters
    w = {field.name: weights[field.start : field.stop].view(field.shape).double() for field in fields}
    first, second = sorted({name.rsplit(".", 1)[0] for name in w}, key=lambda name: name == "head")
    x = world.engine.test.pixels[rows].flatten(1).double()
    hidden = torch.relu(x @ w[f"{first}.weight"].T + w[f"{first}.bias"])
    return F.cross_entropy(hidden @ w[f"{second}.weight"].T + w[f"{second}.bias"], world.engine.test.labels[rows])
