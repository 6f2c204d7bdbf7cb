"""Ditto on a fleet: a client's two models are one piece of work, in rounds and without, against steps typed out."""

import pytest
import torch

from knot_runner.methods.around.fleet import devices
from tests.unit.methods.federated.fleets import WHOLE, Played, buffered, fleet_of
from tests.unit.methods.federated.plain import descend, examples


def ditto(lam=0.7, epochs=None, lr=None):
    return {"lambda_": lam, "personal_epochs": epochs, "personal_lr": lr}


def played(fleet, **changes):
    return Played(fleet, "ditto", **{"changes": ditto(), **changes})


def test_ditto_fleet_rounds_equal_ditto_at_double_time(paced):
    """8, 12 and 16 examples, 2 epochs of two models: 32, 96 and 32 s."""
    paced(1.0, 2.0, 0.5)
    plain, waited = played(None), played(fleet_of())
    assert waited.column("clock") == [96.0, 192.0, 288.0, 384.0]
    assert waited.column("participants") == [[0, 1, 2, 0, 1, 2]] * 4 == plain.column("participants")
    assert waited.state.keys() - plain.state.keys() == {"fleet/clock"}
    assert all(torch.equal(waited.state[name], tensor) for name, tensor in plain.state.items())


def test_partial_work_is_of_both_models(paced):
    """48 s an epoch for client 1, 12 examples each for w and for v, which has 4 epochs: 24 + 48 s an epoch of w."""
    paced(1.0, 2.0, 0.5)
    own = ditto(epochs=4)
    late = played(fleet_of(deadline=100.0, late="partial"), changes=own)
    assert late.column("partial") == [1] * 4 and late.column("clock") == [72.0, 144.0, 216.0, 288.0]
    requests, _ = late.seen[0]
    assert [sum(phase.epochs for phase in one.recipe.phases) for one in requests] == [2, 1, 2, 4, 2, 4]
    lost = played(fleet_of(deadline=60.0), changes=own)
    assert lost.column("participants") == [[0, 2, 0, 2]] * 4 and lost.column("late") == [1] * 4
    cut = devices.shortened_work(requests[:2], 1)  # of 2 epochs and of 1: at least one of each
    assert [sum(phase.epochs for phase in one.recipe.phases) for one in cut] == [1, 1]


def test_ditto_fleet_counts_transfer_of_global_model_only(paced):
    """15 numbers of 32 bits both ways at a bit a second (down) and two (up): 480 + 240 s, once."""
    paced(1.0)
    network = {"down": 1e-6, "up": 2e-6, "sigma": 0.0}
    sent = played(fleet_of(network=network), members=(0,), clients_per_round=1, rounds=2)
    assert sent.column("clock") == pytest.approx([32.0 + 720.0, 64.0 + 1440.0])


def test_ditto_fleet_pulls_own_models_towards_starting_version(paced):
    """Clients of 1, 2.5 and 10 s, a step with every update: clients 0, 0, 1 and 0 began with versions 0, 1, 0 and 2."""
    paced(1 / 32, 2.5 / 48, 10 / 64)
    own = played(buffered(), changes=ditto(lam=0.7, epochs=2, lr=0.2), rounds=6, **WHOLE)
    begun = [(0, 0), (0, 1), (1, 0), (0, 2)]
    assert own.column("participants")[:4] == [[client] * 2 for client, _ in begun]
    assert own.column("staleness")[:4] == [0.0, 0.0, 2.0, 1.0]
    start = own.federation.model.weights
    versions, models = [start], {}
    for place, (client, version) in enumerate(begun):
        (sent, kept), (arrived, _) = own.seen[place]
        x, y = examples(own.world, sent)
        trained = descend(versions[version], x, y, 0.1, 2)
        torch.testing.assert_close(arrived.weights, trained, rtol=1e-11, atol=1e-13)
        before = models.get(client, versions[version])
        models[client] = descend(before, x, y, 0.2, 2, anchor=versions[version], pull=0.7)
        tau = place - version
        versions.append(versions[-1] + (1 + tau) ** -0.5 * (trained - versions[version]))
        state = own.states[place]
        torch.testing.assert_close(state["weights"], versions[-1], rtol=1e-11, atol=1e-13)
        torch.testing.assert_close(state[f"client/{client}/weights"], models[client], rtol=1e-11, atol=1e-13)
    assert (models[1] - trained).norm() > 1e-3
    assert not any(name.startswith("client/2/") for name in own.states[3])
