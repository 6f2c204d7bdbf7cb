"""FedSoup: the soups that clients choose, against full-batch steps and accuracies written out."""

import dataclasses

import pytest
import torch

from knot_runner.methods.contract import METHODS
from tests.golden.messages import refuses
from tests.unit.methods.federated.plain import descend, examples, play
from tests.unit.methods.federated.worlds import CLASSES, holding_out, normed_world, settings

FEDSOUP, FEDAVG = METHODS["fedsoup"], METHODS["fedavg"]
ROUNDS = 8


def fedsoup(start=0.0, **changes):
    return settings("fedsoup", start=start, **changes)


def right(vector, world, rows):
    """How many of the examples at ``rows`` softmax regression at ``vector`` classifies correctly."""
    data = world.engine.data
    logits = data.pixels[rows].flatten(1) @ vector[:12].view(CLASSES, 4).T + vector[12:]
    return int((logits.argmax(1) == data.labels[rows]).sum())


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_clients_choose_between_two_soups(linear, start):
    world = holding_out(linear).with_training(
        rounds=ROUNDS, local_epochs=1, batch_size=24, clients_per_round=5, small_clients="allow", lr=10.0
    )
    config = fedsoup(start, aggregation="uniform")
    state, seen = play(world, config, FEDSOUP, ROUNDS)
    w, own, pools = world.federation.model.weights, {}, {}
    grown = kept = 0
    for round, (requests, _, row) in enumerate(seen):
        for request in requests:
            client, theta = request.client, descend(w, *examples(world, request), 10.0, 1)
            if round >= start * ROUNDS:
                pool = pools.setdefault(client, [])
                soup = torch.stack([theta, *pool]).mean(0)
                larger = torch.stack([theta, *pool, w]).mean(0)
                valid = world.federation.clients[client].valid
                if right(larger, world, valid) > right(soup, world, valid):
                    pool.append(w)
                    soup, grown = larger, grown + 1
                else:
                    kept += 1
                theta = soup
            own[client] = theta
        assert row.get("pool_size") == (sum(map(len, pools.values())) / 5 if pools else None)
        w = torch.stack([own[client] for client in range(5)]).mean(0)
    assert grown > 2 and kept > 5 and max(map(len, pools.values())) > (start == 0)
    torch.testing.assert_close(state["weights"], w, rtol=1e-9, atol=1e-11)
    for client in range(5):
        found = FEDSOUP.deployed(config, state, world.federation, client).weights
        torch.testing.assert_close(found, own[client], rtol=1e-9, atol=1e-11)
        assert int(state[f"client/{client}/pool_size"]) == len(pools[client])
        if pools[client]:
            mean = torch.stack(pools[client]).mean(0)
            torch.testing.assert_close(state[f"client/{client}/pool"], mean, rtol=1e-9, atol=1e-11)


def test_fedsoup_costs_count_two_held_out_predictions(linear):
    world = holding_out(linear).with_training(rounds=1, clients_per_round=5, small_clients="allow")
    for request in FEDSOUP.plan(fedsoup(), FEDSOUP.init(fedsoup(), world.federation), world.federation, 0):
        held, own = len(world.federation.clients[request.client].valid), len(request.rows)
        assert request.program.further == pytest.approx(2 * held / (3 * own))


def test_running_statistics_are_those_of_training(linear):
    world = holding_out(normed_world(linear)).with_training(rounds=1, clients_per_round=5, small_clients="allow")
    _, seen = play(world, fedsoup(), FEDSOUP, 1)
    bare = [dataclasses.replace(request, program=None) for request in seen[0][0]]
    for result, plain in zip(seen[0][1], world.engine.train(bare), strict=True):
        assert torch.equal(result.buffers, plain.buffers)


def test_fedsoup_init_refuses_client_without_held_out_examples(linear):
    with refuses():
        FEDSOUP.init(fedsoup(), linear.federation)
    world = holding_out(linear)
    world.federation.clients[3].examples["valid"] = world.federation.clients[3].valid[:0]
    with refuses():
        FEDSOUP.init(fedsoup(), world.federation)
