"""Ditto: each client's own model beside FedAvg, against full-batch steps written out."""

import pytest
import torch

from knot_runner.methods.contract import METHODS
from tests.unit.methods.federated.plain import descend, examples, play
from tests.unit.methods.federated.worlds import settings

DITTO, FEDAVG = METHODS["ditto"], METHODS["fedavg"]


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
        found = DITTO.deployed(config, state, whole.federation, client).weights
        torch.testing.assert_close(found, vector, rtol=1e-11, atol=1e-13)
        assert (found - w).norm() > 1e-3


def test_ditto_trains_both_models_on_same_batches(world):
    """Without a pull, a client's first own model is its part of the global one."""
    _, ((_, trained, _),) = play(world, ditto(lam=0.0), DITTO, 1)
    for sent, own in zip(trained[:3], trained[3:], strict=True):
        assert sent.client == own.client and torch.equal(sent.weights, own.weights)


def test_chilled_own_models_train_cold_too(world):
    requests = DITTO.plan(ditto(temperature=0.5), DITTO.init(ditto(), world.federation), world.federation, 0)
    assert [request.objective.settings["temperature"] for request in requests] == [0.5] * 6
    slow = DITTO.plan(
        ditto(lr=0.03, temperature=0.5, lr_control=True), DITTO.init(ditto(), world.federation), world.federation, 0
    )
    assert [request.recipe.lr for request in slow] == [0.2] * 3 + [pytest.approx(0.06)] * 3
