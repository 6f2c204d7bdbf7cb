"""Ditto, APFL and FedSoup against full-batch steps written out, and what all methods with models of clients share."""

import dataclasses

import pytest
import torch

from knot_runner.methods.contract import METHODS
from tests.golden.messages import refuses
from tests.unit.methods.federated.plain import descend, examples, gradient, linear_logits, loss, play
from tests.unit.methods.federated.worlds import holding_out, normed_world, settings, with_rows

APFL, DITTO, FEDAVG, FEDSOUP = (METHODS[name] for name in ("apfl", "ditto", "fedavg", "fedsoup"))


@pytest.mark.parametrize(("adaptive", "lr"), [(False, 0.1), (True, 0.1), (True, 4.0)])
def test_apfl_models_and_alpha_match_steps_by_hand(linear, adaptive, lr):
    world = linear.with_training(local_epochs=3, batch_size=24, clients_per_round=5, small_clients="allow", lr=lr)
    config = settings("apfl", alpha=0.4, adaptive=adaptive, aggregation="uniform")
    state, seen = play(world, config, APFL, 3)
    w = world.federation.model.weights
    own, alphas = dict.fromkeys(range(5), w), dict.fromkeys(range(5), 0.4)
    for requests, trained, row in seen:
        sent, mixed_losses = [], []
        for request, result in zip(requests, trained, strict=True):
            x, y = examples(world, request)
            here, v, a = w, own[request.client], alphas[request.client]
            losses = []
            for step in range(3):
                mixed = a * v + (1 - a) * here
                losses.append((loss(here, x, y), loss(mixed, x, y)))
                at_mixed, used = gradient(mixed, x, y), a
                if adaptive and step == 0:
                    a = min(max(a - lr * float((v - here) @ at_mixed), 0.0), 1.0)
                here, v = here - lr * gradient(here, x, y), v - lr * used * at_mixed
            own[request.client], alphas[request.client] = v, a
            sent.append(here)
            assert result.loss == pytest.approx(sum(pair[0] for pair in losses) / 3) and result.steps == 3
            mixed_losses.append(sum(pair[1] for pair in losses) / 3)
        w = sum(sent) / 5
        assert row["own_loss"] == pytest.approx(sum(mixed_losses) / 5)
        assert row["alpha"] == pytest.approx(sum(alphas.values()) / 5)
    torch.testing.assert_close(state["weights"], w, rtol=1e-9, atol=1e-11)
    for client, v in own.items():
        expected = alphas[client] * v + (1 - alphas[client]) * w
        actual = APFL.deployed(config, state, world.federation, client).weights
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
        assert float(state[f"client/{client}/alpha"]) == pytest.approx(alphas[client], abs=1e-12)
    assert (len(set(alphas.values())) > 1) == adaptive
    if lr == 4.0:
        assert {0.0, 1.0} & set(alphas.values())  # clipped


def test_apfl_own_optimizers_keep_their_own_momentum(world):
    """With momentum and decay alpha 1 is still what a client alone does."""
    heavy = world.with_training(clients_per_round=5, momentum=0.9, weight_decay=0.05)
    _, ((_, trained, _),) = play(heavy, settings("apfl", alpha=1.0, adaptive=False), APFL, 1)
    _, ((_, plainly, _),) = play(heavy, settings(), FEDAVG, 1)
    for result, plain in zip(trained, plainly, strict=True):
        assert torch.equal(result.weights, plain.weights) and torch.equal(result.kept["weights"], plain.weights)


#: (algorithm, its settings, the rounds in which its global model is FedAvg's)
CASES = [
    ("ditto", {}, 3), ("apfl", {"alpha": 0.5, "adaptive": True}, 3), ("fedala", {}, 1), ("fedsoup", {"start": 0.99}, 1),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "changes", "rounds"), CASES)
def test_global_model_equals_fedavg_and_serves_untrained_clients(world, algorithm, changes, rounds):
    world, method, config = holding_out(world), METHODS[algorithm], settings(algorithm, **changes)
    state, _ = play(world, config, method, rounds)
    plain, _ = play(world, settings(), METHODS["fedavg"], rounds)
    assert torch.equal(state["weights"], plain["weights"])
    assert method.plan(config, state, world.federation, 4) == []
    state, ((requests, _, _),) = play(world, config, method, 1)
    absent = set(range(5)) - {request.client for request in requests}
    assert absent
    for client in range(5):
        own = method.deployed(config, state, world.federation, client).weights
        assert torch.equal(own, state["weights"]) is (client in absent)
        assert algorithm not in ("fedala", "fedsoup") or all(request.program is None for request in requests)


def ditto(lam=0.7, epochs=None, lr=None, **changes):
    return settings("ditto", lambda_=lam, personal_epochs=epochs, personal_lr=lr, **changes)


@pytest.fixture(scope="module")
def whole(linear):
    """Everybody takes part in every round, with one batch of all examples: no draw matters."""
    return linear.with_training(local_epochs=2, batch_size=24, clients_per_round=5, small_clients="allow")


def test_ditto_pulls_own_models_towards_sent_model(whole):
    config = ditto(lam=0.7, epochs=3, lr=0.2, aggregation="uniform")
    state, seen = play(whole, config, DITTO, 3)
    start = whole.federation.model.weights
    w, own = start, {client: start for client in range(5)}
    for requests, trained, row in seen:
        assert [request.client for request in requests] == [0, 1, 2, 3, 4] * 2
        losses = [result.loss for result in trained[5:]]
        assert row["own_loss"] == pytest.approx(sum(losses) / 5)
        sent = []
        for request in requests[:5]:
            x, y = examples(whole, request)
            sent.append(descend(w, x, y, 0.1, 2))
            own[request.client] = descend(own[request.client], x, y, 0.2, 3, anchor=w, pull=0.7)
        w = sum(sent) / 5
    torch.testing.assert_close(state["weights"], w, rtol=1e-11, atol=1e-13)
    for client, vector in own.items():
        actual = DITTO.deployed(config, state, whole.federation, client).weights
        torch.testing.assert_close(actual, vector, rtol=1e-11, atol=1e-13)
        assert (actual - w).norm() > 1e-3


def test_ditto_trains_both_models_on_same_batches_and_chilled(world):
    """Without a pull, a client's first own model is its part of the global one."""
    _, ((requests, trained, _),) = play(world, ditto(lam=0.0, temperature=0.5), DITTO, 1)
    assert [request.objective.settings["temperature"] for request in requests] == [0.5] * 6
    for sent, kept in zip(trained[:3], trained[3:], strict=True):
        assert sent.client == kept.client and torch.equal(sent.weights, kept.weights)
    slow = ditto(lr=0.03, temperature=0.5, lr_control=True)
    requests = DITTO.plan(slow, DITTO.init(slow, world.federation), world.federation, 0)
    assert [request.recipe.lr for request in requests] == [0.2] * 3 + [pytest.approx(0.06)] * 3


ROUNDS = 8


def right(vector, world, rows):
    data = world.engine.data
    logits = linear_logits(vector, data.pixels[rows].flatten(1))
    return int((logits.argmax(1) == data.labels[rows]).sum())


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_clients_choose_between_two_soups(linear, start):
    world = holding_out(linear).with_training(
        rounds=ROUNDS, local_epochs=1, batch_size=24, clients_per_round=5, small_clients="allow", lr=10.0
    )
    config = settings("fedsoup", start=start, aggregation="uniform")
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
        actual = FEDSOUP.deployed(config, state, world.federation, client).weights
        torch.testing.assert_close(actual, own[client], rtol=1e-9, atol=1e-11)
        assert int(state[f"client/{client}/pool_size"]) == len(pools[client])
        if pools[client]:
            mean = torch.stack(pools[client]).mean(0)
            torch.testing.assert_close(state[f"client/{client}/pool"], mean, rtol=1e-9, atol=1e-11)


def test_fedsoup_counts_two_held_out_predictions_and_keeps_statistics_of_training(linear):
    world = holding_out(normed_world(linear)).with_training(rounds=1, clients_per_round=5, small_clients="allow")
    _, seen = play(world, settings("fedsoup"), FEDSOUP, 1)
    for request in seen[0][0]:
        held, rows = len(world.federation.clients[request.client].valid), len(request.rows)
        assert request.program.further == pytest.approx(2 * held / (3 * rows))
    bare = [dataclasses.replace(request, program=None) for request in seen[0][0]]
    for result, plain in zip(seen[0][1], world.engine.train(bare), strict=True):
        assert torch.equal(result.buffers, plain.buffers)


def test_fedsoup_init_refuses_client_without_held_out_examples(linear):
    with refuses():
        FEDSOUP.init(settings("fedsoup"), linear.federation)
    world = holding_out(linear)
    valid = world.federation.rows("valid")
    valid[3] = valid[3][:0]
    federation = with_rows(world.federation, valid=valid)
    with refuses():
        FEDSOUP.init(settings("fedsoup"), federation)
