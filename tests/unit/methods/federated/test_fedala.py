"""FedALA: the mix that a client trains from, against full-batch steps written out."""

import dataclasses

import numpy as np
import pytest
import torch

from knot_runner.engine.seeds import generator
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated.fedala import layer_starts
from tests.golden.messages import refuses
from tests.unit.methods.federated.plain import descend, examples, gradient, loss, play
from tests.unit.methods.federated.worlds import settings

FEDALA = METHODS["fedala"]


def fedala(layers=1, share=1.0, rate=50.0, threshold=1e-3, window=4, max_epochs=100, deployed="trained", **changes):
    own = {"layers": layers, "share": share, "rate": rate, "threshold": threshold, "window": window}
    return settings("fedala", **own, max_epochs=max_epochs, deployed=deployed, **changes)


def learned(mix, v, w, x, y, config, passes):
    """W after gradient steps on all examples, and their number; ``passes``: at most."""
    losses = []
    while len(losses) < passes:
        recent = losses[-config.window :]
        if len(losses) > config.window and np.std(recent) < config.threshold:
            break
        at = v + (w - v) * mix
        losses.append(loss(at, x, y))
        mix = (mix - config.rate * gradient(at, x, y) * (w - v)).clamp(0, 1)
    return mix, len(losses)


@pytest.mark.parametrize("max_epochs", [3, 100])
def test_fedala_clients_train_from_learned_mix(linear, max_epochs):
    world = linear.with_training(local_epochs=3, batch_size=24, clients_per_round=5, small_clients="allow", lr=1.0)
    config = fedala(max_epochs=max_epochs, aggregation="uniform")
    state, seen = play(world, config, FEDALA, 4)
    w, own, mixes, counts = world.federation.model.weights, {}, {}, []
    for requests, _, row in seen:
        sent, passes = [], []
        for request in requests:
            x, y = examples(world, request)
            start, client = w, request.client
            if client in own:
                first = client not in mixes
                last = torch.ones_like(w) if first else mixes[client]
                mixes[client], took = learned(last, own[client], w, x, y, config, max_epochs if first else 1)
                start = own[client] + (w - own[client]) * mixes[client]
                passes.append(took)
            own[client] = descend(start, x, y, 1.0, 3)
            sent.append(own[client])
        w = sum(sent) / 5
        if passes:
            assert row["mix_passes"] == sum(passes) / 5
            counts.append(passes)
        else:
            assert set(row) == {"bytes_down", "bytes_up"}
    assert row["mix"] == pytest.approx(float(torch.stack(list(mixes.values())).mean()))
    assert counts[1:] == [[1] * 5] * 2
    assert counts[0] == [3] * 5 if max_epochs == 3 else len(set(counts[0])) > 1 and max(counts[0]) < 100
    torch.testing.assert_close(state["weights"], w, rtol=1e-9, atol=1e-11)
    mixed = dataclasses.replace(config, deployed="mixed")
    for client in range(5):
        actual = FEDALA.deployed(config, state, world.federation, client).weights
        torch.testing.assert_close(actual, own[client], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(state[f"client/{client}/mix"], mixes[client], rtol=1e-9, atol=1e-11)
        expected = own[client] + (w - own[client]) * mixes[client]
        actual = FEDALA.deployed(mixed, state, world.federation, client).weights
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
        assert ((mixes[client] > 0) & (mixes[client] < 1)).any() and (mixes[client] == 0).any()


def test_fedala_takes_first_layers_from_global_model(deep):
    everybody = deep.with_training(clients_per_round=5)
    layout, config = everybody.federation.layout, fedala(deployed="mixed")
    assert layer_starts(layout) == [0, 25] and layout.size == 43
    state, seen = play(everybody, config, FEDALA, 2)
    for client in range(5):
        actual = FEDALA.deployed(config, state, everybody.federation, client).weights
        assert torch.equal(actual[:25], state["weights"][:25])
        assert not torch.equal(actual[25:], state["weights"][25:])
        assert len(state[f"client/{client}/mix"]) == 18
    for request in seen[1][0]:
        sent, own = request.start.weights, request.program.tensors["weights"]
        still = dataclasses.replace(request.recipe, lr=0.0)
        (result,) = everybody.engine.train([dataclasses.replace(request, recipe=still)])
        assert torch.equal(result.weights[:25], sent[:25]) and not torch.equal(own[:25], sent[:25])
        expected = own[25:] + (sent - own)[25:] * result.kept["mix"]
        torch.testing.assert_close(result.weights[25:], expected, rtol=1e-13, atol=1e-15)
    state, _ = play(everybody, fedala(layers=2), FEDALA, 2)
    assert all(len(state[f"client/{client}/mix"]) == 43 for client in range(5))
    with refuses():
        FEDALA.init(fedala(layers=3), deep.federation)


def test_fedala_share_redraws_examples_every_round(linear):
    world = linear.with_training(local_epochs=1, batch_size=24, clients_per_round=5, small_clients="allow")
    config = fedala(share=0.3, max_epochs=1, rate=5.0)
    _, seen = play(world, config, FEDALA, 3)
    last = {}
    for number in (1, 2):
        for request, result in zip(seen[number][0], seen[number][1], strict=True):
            count = round(0.3 * len(request.rows))
            chosen = torch.randperm(len(request.rows), generator=generator(3, "fedala", number, request.client))[:count]
            x, y = examples(world, request)
            v, w = request.program.tensors["weights"], request.start.weights
            mix = last.get(request.client, torch.ones_like(v))
            step = gradient(v + (w - v) * mix, x[chosen], y[chosen])
            last[request.client] = (mix - 5.0 * step * (w - v)).clamp(0, 1)
            torch.testing.assert_close(result.kept["mix"], last[request.client], rtol=1e-10, atol=1e-12)


def test_fedala_learns_the_first_mix_for_more_passes_than_the_window(deep):
    everybody = deep.with_training(clients_per_round=5)
    _, seen = play(everybody, fedala(threshold=10.0, window=4), FEDALA, 3)
    assert [row.get("mix_passes") for _, _, row in seen] == [None, 5, 1]
