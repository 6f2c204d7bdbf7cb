"""Fine-tuning and soup, against a plain loop over batches typed here."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.settings.methods.personalization import FinetuneSettings, SoupSettings
from knot_runner.engine.federated import local
from knot_runner.engine.federated.cohort import ClientModel
from knot_runner.methods.personalization import finetune, soup
from knot_runner.methods.personalization.contract import PersonalFederation, Point, personal_recipe
from knot_runner.methods.personalization.curve import area, id_at_matched_ood, trade_offs
from tests.changed_settings import built
from tests.unit.methods.federated.worlds import make_world, settings


@pytest.fixture(scope="module")
def world():
    return make_world([])


def federation_of(world, **changes):
    """Its clients after the rounds, client 2 with a model of its own."""
    start = world.federation.model
    own = ClientModel(start.weights + 0.25, start.buffers)
    return PersonalFederation.after(world.federation, settings(**changes), lambda client: own if client == 2 else start)


def run(world, config, federation):
    state, round, actual = finetune.init(config, federation), 0, {}
    kind = soup.soup_models if isinstance(config, SoupSettings) else finetune.finetune_models
    while requests := finetune.plan(config, state, federation, round):
        state, _ = finetune.fold(config, state, federation, round, requests, world.engine.train(requests))
        shown = finetune.under_way(config, federation, round)
        assert {name for name in state if name.endswith("/weights")} == {f"theta/{client}/weights" for client in shown}
        for point, models in kind(config, federation, state, round):
            assert not {(point, client) for client in models} & actual.keys()
            actual |= {(point, client): model.weights.clone() for client, model in models.items()}
        round += 1
    assert round == finetune.finetune_rounds(config, federation)
    return actual


def plain(world, federation, config, client, temperature):
    weight, bias = federation.layout.parameters
    origin = federation.start(client).weights.double()
    theta, rows, saved = origin.clone(), federation.clients[client].train, []
    x, y = world.engine.data.pixels[rows].flatten(1).double(), world.engine.data.labels[rows]
    for step in range(config.checkpoints):
        request = finetune.finetune_request(
            config, federation, {f"theta/{client}/weights": theta, f"theta/{client}/buffers": theta[:0]}, client, step
        )
        for epoch in local.epochs(request, "none"):
            for batch in epoch.order.split(request.recipe.batch_size):
                w = theta[weight.start : weight.stop].view(weight.shape)
                b = theta[bias.start : bias.stop]
                q = torch.softmax((x[batch] @ w.T + b) / temperature, 1) - F.one_hot(y[batch], 3)
                q = q / len(batch) / temperature
                gradient = torch.cat([(q.T @ x[batch]).flatten(), q.sum(0)])
                theta = theta - config.lr * (gradient + 2 * config.prox * (theta - origin))
        saved.append(theta)
    return saved


FINETUNE = "base/personalization/finetune.yaml"


def tuned_by(**changes):
    return built(FinetuneSettings, FINETUNE, **changes)


@pytest.mark.parametrize(("wd", "temperature", "batch"), [(0.0, 1.0, 0), (0.7, 1.0, 0), (0.0, 0.5, 5)])
def test_finetune_saves_match_plain_loop(world, wd, temperature, batch):
    federation = federation_of(world, temperature=temperature)
    config = tuned_by(lr=0.2, epochs=6, checkpoints=3, prox=wd, batch_size=batch)
    actual = run(world, config, federation)
    assert finetune.finetune_request(config, federation, {}, 1, 0).recipe.batch_size == (batch or 4)
    assert len(actual) == 4 * 5
    for client in range(5):
        torch.testing.assert_close(actual[0, client], federation.start(client).weights, rtol=0, atol=0)
        for step, theta in enumerate(plain(world, federation, config, client, temperature)):
            torch.testing.assert_close(actual[step + 1, client], theta, rtol=0, atol=1e-12)


def test_finetune_request_takes_temperatures_alone_from_rounds(world):
    other = dataclasses.replace(world.federation.training, momentum=0.9, weight_decay=0.1)
    federation = dataclasses.replace(federation_of(world, algorithm="fedprox", mu=3.0), training=other)
    recipe = finetune.finetune_request(tuned_by(), federation, {}, 0, 0).recipe
    assert (recipe.momentum, recipe.weight_decay, recipe.proximal, recipe.lr) == (0.0, 0.0, 0.0, 0.0025)
    assert personal_recipe(tuned_by(), federation, 0, 1).proximal == 0.0
    federation = federation_of(world, temperature=0.5, lr_control=True)
    request = finetune.finetune_request(tuned_by(lr=0.1), federation, {}, 1, 0)
    assert request.recipe.lr == pytest.approx(0.2) and request.objective.settings["temperature"] == 1.0


def test_finetune_slower_divides_rate_and_multiplies_epochs(world):
    federation = federation_of(world)
    slow = tuned_by(lr=0.2, epochs=2, checkpoints=2, slower=4)
    actual = run(world, slow, federation)
    as_long = run(world, tuned_by(lr=0.05, epochs=8, checkpoints=2), federation)
    assert all(torch.equal(actual[key], as_long[key]) for key in as_long)
    assert [point.epochs for point in finetune.finetune_points(slow)] == [0, 4, 8]


def test_finetune_in_parts_gives_same_models(world, monkeypatch):
    config = tuned_by(lr=0.2, epochs=2, checkpoints=2)
    whole = run(world, config, federation_of(world))
    monkeypatch.setattr(finetune, "FEWEST", 2)
    monkeypatch.setattr(finetune, "PARAMETERS_AT_ONCE", 0)
    federation = federation_of(world)
    assert finetune.finetune_rounds(config, federation) == 6
    parts = run(world, config, federation)
    assert parts.keys() == whole.keys() and all(torch.equal(parts[key], whole[key]) for key in whole)


@pytest.mark.parametrize("at", ["last", "all"])
def test_soup_lies_between_and_has_both_ends(world, at):
    federation = federation_of(world)
    soup_of = {"alphas": [0.0, 0.3, 1.0], "at": at, "extrapolate": False, "lr": 0.2, "epochs": 4, "checkpoints": 2}
    config = built(SoupSettings, FINETUNE, kind="soup", **soup_of)
    tuned = run(world, tuned_by(lr=0.2, epochs=4, checkpoints=2), federation)
    actual, points = run(world, config, federation), soup.soup_points(config)
    steps = [1, 2] if at == "all" else [2]
    assert points == [Point(step, 2 * step, alpha) for step in steps for alpha in (0.0, 0.3, 1.0)]
    assert len(actual) == len(points) * 5
    for (point, client), theta in actual.items():
        start, end = federation.start(client).weights, tuned[points[point].step, client]
        torch.testing.assert_close(theta, start + points[point].alpha * (end - start), rtol=0, atol=1e-12)
        if points[point].alpha in (0.0, 1.0):
            assert torch.equal(theta, end if points[point].alpha else start)


def test_soup_mixes_weights_and_running_statistics():
    first, last = (ClientModel(torch.rand(7), torch.rand(3)) for _ in range(2))
    mixed = soup.interpolated(first, last, 0.3)
    torch.testing.assert_close(mixed.weights, 0.7 * first.weights + 0.3 * last.weights)
    torch.testing.assert_close(mixed.buffers, 0.7 * first.buffers + 0.3 * last.buffers)


shares = st.integers(0, 20).map(lambda value: value / 20)
curves = st.lists(st.tuples(shares, shares), max_size=6)


@given(curves, shares, shares)
def test_area_is_what_the_points_dominate(points, low_ood, low_id):
    at = (np.arange(20) + 0.5) / 20
    ood, own = np.meshgrid(at, at)
    inside = np.zeros_like(ood, dtype=bool)
    for a, b in points:
        inside |= (ood < a) & (own < b)
    inside &= (ood > low_ood) & (own > low_id)
    assert area(points, (low_ood, low_id)) == pytest.approx(inside.mean())


def test_trade_offs_by_hand():
    """A point of OOD is given up for 0.2 of ID, five for 0.4; two rectangles above guessing and theta_0."""
    start, *points = ({"ood_accuracy": ood, "id_accuracy": own} for ood, own in [(0.8, 0.5), (0.79, 0.7), (0.75, 0.9)])
    found = trade_offs(points, start, 0.1)
    assert found.pop("id_at_matched_ood") == {"1": 0.7, "2": 0.7, "5": 0.9}
    assert found == pytest.approx({"gain_at_matched_ood": 0.2, "area": 0.69 * 0.2 + 0.65 * 0.2})
    assert id_at_matched_ood([(0.8, 0.6), (0.75, 0.9)], 0.9, 0.05) is None
