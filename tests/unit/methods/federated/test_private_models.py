"""Private SCAFFOLD and FedGen against loops typed out by hand: all parts of a message are clipped together."""

import dataclasses
import math

import pytest
import torch

from knot_runner.methods.federated.fedgen import MILLION
from knot_runner.methods.messages import in_rounds
from tests.unit.methods.federated import worlds
from tests.unit.methods.federated.plain import play
from tests.unit.methods.federated.worlds import CLASSES, SERVER, settings

SCAFFOLD = settings("scaffold", aggregation="uniform")
FEDGEN = settings("fedgen", aggregation="uniform", server=dataclasses.replace(SERVER, lr=0.5))
PLAIN = dataclasses.replace(FEDGEN, server=SERVER)
CONTROL, LABELS, EVERYBODY = 0.8, 0.7, (0, 1, 2, 3, 4)


def private(world, config, expected=4, chosen=EVERYBODY, rounds=4, **changes):
    """(``world`` in whose rounds the clients ``chosen`` take part, its private method); not noised, unless said."""
    spec = worlds.Unaccounted(**{"clip_norm": 0.5, "noise_multiplier": 0.0, "sampling": "poisson",
                                 "participants": expected, "clients": 5,
                                 "scales": (("control", CONTROL), ("labels", LABELS)), **changes})  # fmt: skip
    federation = dataclasses.replace(world.federation, sampling="poisson", chosen=chosen)
    world = dataclasses.replace(world, federation=federation).with_training(clients_per_round=expected, rounds=rounds)
    return world, in_rounds(worlds.private(config, world.federation, spec), config)


def test_private_scaffold_clips_model_and_control_together(world):
    """Three rounds of five clients, four of whom were expected; c_k goes by what its client sends."""
    whole, scaffold = private(world, SCAFFOLD, clip_norm=0.25)
    state, seen = play(whole, SCAFFOLD, scaffold, 3)
    w = whole.federation.model.weights
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in range(5)]
    shares = []
    for requests, trained, row in seen:
        models, controls, norms = torch.zeros_like(w), torch.zeros_like(w), []
        for client, (request, result) in enumerate(zip(requests, trained, strict=True)):
            torch.testing.assert_close(request.control, c - own[client], rtol=1e-12, atol=1e-14)
            model = result.weights - w
            change = (own[client] - c + (w - result.weights) / (result.steps * 0.1)) - own[client]
            squares = sum(float(x) ** 2 for x in model) + CONTROL**2 * sum(float(x) ** 2 for x in change)
            share = min(1.0, 0.25 / math.sqrt(squares))
            models, controls = models + share * model, controls + share * change
            own[client] = own[client] + share * change
            norms.append(math.sqrt(squares))
            shares.append(share)
        w, c = w + models / 4, c + controls / 5
        assert row["update_norms"] == pytest.approx(norms, rel=1e-12)
        assert row["clipped"] == sum(norm > 0.25 for norm in norms) / 5
    torch.testing.assert_close(state["weights"], w, rtol=0, atol=1e-12)
    torch.testing.assert_close(state["control"], c, rtol=0, atol=1e-12)
    for client in range(5):
        torch.testing.assert_close(state[f"client/{client}/control"], own[client], rtol=0, atol=1e-12)
    assert min(shares) < 0.9 and max(shares) == 1.0  # some were clipped, some were not


def test_private_scaffold_empty_round_noises_model_and_control(deep):
    """Over 200 rounds: standard deviations zC / (qK) and zC / (sK) within 4 of their standard errors, independent."""
    whole, scaffold = private(deep, SCAFFOLD, 2, chosen=(), rounds=200, noise_multiplier=2.0)
    federation = whole.federation
    state, moves, turns = scaffold.init(SCAFFOLD, federation), [], []
    for round in range(200):
        after, row, _ = scaffold.fold(SCAFFOLD, state, federation, round, [], [], None)
        assert row == {"bytes_down": 0, "bytes_up": 0, "update_norms": []} and after.keys() == {*state, "control"}
        moves.append(after["weights"] - state["weights"])
        turns.append(after["control"])
    again, _, _ = scaffold.fold(SCAFFOLD, state, federation, 199, [], [], None)
    assert torch.equal(again["control"], turns[-1]) and torch.equal(again["weights"], after["weights"])
    moves, turns = torch.stack(moves).flatten(), torch.stack(turns).flatten()
    error = 4 / math.sqrt(2 * len(moves))
    assert float(moves.std()) == pytest.approx(2.0 * 0.5 / 2, rel=error)
    assert float(turns.std()) == pytest.approx(2.0 * 0.5 / (CONTROL * 5), rel=error)
    assert abs(float(torch.corrcoef(torch.stack([moves, turns]))[0, 1])) < 4 / math.sqrt(len(moves))


def untrained(monkeypatch):
    given = []

    def train(config, state, after, federation, round, heads):
        given.extend(heads)
        return {**after, "generator/labels": heads[0].counts}, {"generator_loss": 0.0}

    monkeypatch.setattr("knot_runner.methods.federated.fedgen.train_generator", train)
    return given


def test_private_fedgen_clips_model_and_labels_together(deep):
    whole, fedgen = private(deep, FEDGEN)
    state, seen = play(whole, FEDGEN, fedgen, 3)
    w, labels, taken = whole.federation.model.weights, deep.engine.data.labels, []
    for requests, trained, row in seen:
        models, told, norms = torch.zeros_like(w), torch.zeros(CLASSES, dtype=torch.float64), []
        for request, result in zip(requests, trained, strict=True):
            torch.testing.assert_close(request.start.weights, w, rtol=0, atol=1e-12)
            own = [int((labels[request.rows] == label).sum()) / len(request.rows) for label in range(CLASSES)]
            shares = LABELS * torch.tensor(own, dtype=torch.float64)
            norms.append(math.sqrt(float(((result.weights - w) ** 2).sum() + (shares**2).sum())))
            taken.append(min(1.0, 0.5 / norms[-1]))
            models, told = models + taken[-1] * (result.weights - w), told + taken[-1] * shares
        w = w + 0.5 * models / 4
        assert row["update_norms"] == pytest.approx(norms, rel=1e-12)
        assert row["clipped"] == sum(norm > 0.5 for norm in norms) / 5 and row["generator_loss"] > 0
    torch.testing.assert_close(state["weights"], w, rtol=0, atol=1e-12)
    assert min(taken) < 0.95 and max(taken) == 1.0  # some were clipped, some were not
    wanted = MILLION * told / told.sum()
    torch.testing.assert_close(state["generator/labels"].double(), wanted, rtol=0, atol=0.51)


def test_private_fedgen_generator_gets_head_after_server_step(deep, monkeypatch):
    (whole, fedgen), given = private(deep, FEDGEN), untrained(monkeypatch)
    after, _ = play(whole, FEDGEN, fedgen, 1)
    (head,) = given
    assert torch.equal(torch.cat([head.weight.flatten(), head.bias]), after["weights"][-(CLASSES * 5 + CLASSES) :])
    assert torch.equal(head.counts, after["generator/labels"])


def test_private_fedgen_round_without_participants_gives_noise(deep, monkeypatch):
    """Over 100 rounds: labels where noise is above zero, at least one."""
    whole, fedgen = private(deep, PLAIN, chosen=(), rounds=100, noise_multiplier=2.0)
    state, federation = fedgen.init(PLAIN, whole.federation), whole.federation
    drawn, row, _ = fedgen.fold(PLAIN, state, federation, 0, [], [], None)
    assert "generator/labels" in drawn and row["generator_loss"] > 0
    untrained(monkeypatch)
    labels = []
    for round in range(100):
        after, row, _ = fedgen.fold(PLAIN, state, federation, round, [], [], None)
        counts = after["generator/labels"]
        assert row["update_norms"] == [] and "clipped" not in row
        assert abs(int(counts.sum()) - MILLION) <= CLASSES and int(counts.min()) >= 0
        labels.append(counts)
    zero = float((torch.stack(labels) == 0).double().mean())
    assert 0.3 < zero < 0.6  # an eighth of the rounds has no positive one, and all alike
    assert any(len(set(counts.tolist())) == 1 for counts in labels)
    again, _, _ = fedgen.fold(PLAIN, state, federation, 99, [], [], None)
    assert torch.equal(again["weights"], after["weights"])
