"""Private FedGen against sums typed out by hand: a model and the shares of its labels are clipped together."""

import dataclasses
import math

import pytest
import torch

from knot_runner.methods.around.privacy import UserPrivacy
from knot_runner.methods.federated.fedgen import MILLION
from knot_runner.methods.messages import in_rounds
from tests.unit.methods.federated import worlds
from tests.unit.methods.federated.plain import play
from tests.unit.methods.federated.worlds import CLASSES, SERVER, settings

SCALE, BOUND, EXPECTED = 0.7, 0.5, 4
HP = settings("fedgen", aggregation="uniform", server=dataclasses.replace(SERVER, lr=0.5))
PLAIN = dataclasses.replace(HP, server=SERVER)


def private(deep, chosen=(0, 1, 2, 3, 4), config=HP, rounds=4, **changes):
    """(A world of ``chosen``, four of whom were expected, private FedGen)."""
    spec = UserPrivacy(**{"clip_norm": BOUND, "noise_multiplier": 0.0, "sampling": "poisson", "participants": EXPECTED,
                          "clients": 5, "scales": (("labels", SCALE),), **changes})  # fmt: skip
    federation = dataclasses.replace(deep.federation, sampling="poisson", chosen=chosen)
    whole = dataclasses.replace(deep, federation=federation).with_training(clients_per_round=EXPECTED, rounds=rounds)
    return whole, in_rounds(worlds.private(config, whole.federation, spec), config)


def untrained(monkeypatch):
    """Heads by which the server would have trained its generator, as they come."""
    given = []

    def train(spec, model, kept, heads, seed, round):
        given.extend(heads)
        return {}, 0.0

    monkeypatch.setattr("knot_runner.methods.federated.fedgen.train_generator", train)
    return given


def test_private_fedgen_clips_model_and_labels_together(deep):
    """Over three rounds, in which the server goes half of the way."""
    whole, fedgen = private(deep)
    state, seen = play(whole, HP, fedgen, 3)
    w, labels, taken = whole.federation.model.weights, deep.engine.data.labels, []
    for requests, trained, row in seen:
        models, told, norms = torch.zeros_like(w), torch.zeros(CLASSES, dtype=torch.float64), []
        for request, result in zip(requests, trained, strict=True):
            torch.testing.assert_close(request.start.weights, w, rtol=0, atol=1e-12)
            own = [int((labels[request.rows] == label).sum()) / len(request.rows) for label in range(CLASSES)]
            shares = SCALE * torch.tensor(own, dtype=torch.float64)
            norms.append(math.sqrt(float(((result.weights - w) ** 2).sum() + (shares**2).sum())))
            taken.append(min(1.0, BOUND / norms[-1]))
            models, told = models + taken[-1] * (result.weights - w), told + taken[-1] * shares
        w = w + 0.5 * models / EXPECTED
        assert row["update_norms"] == pytest.approx(norms, rel=1e-12)
        assert row["clipped"] == sum(norm > BOUND for norm in norms) / 5 and row["generator_loss"] > 0
    torch.testing.assert_close(state["weights"], w, rtol=0, atol=1e-12)
    assert min(taken) < 0.95 and max(taken) == 1.0  # some were clipped, some were not
    wanted = MILLION * told / told.sum()
    torch.testing.assert_close(state["generator/labels"].double(), wanted, rtol=0, atol=0.51)


def test_private_fedgen_generator_gets_head_after_server_step(deep, monkeypatch):
    (whole, fedgen), given = private(deep), untrained(monkeypatch)
    after, _ = play(whole, HP, fedgen, 1)
    (head,) = given
    assert torch.equal(torch.cat([head.weight.flatten(), head.bias]), after["weights"][-(CLASSES * 5 + CLASSES) :])
    assert torch.equal(head.counts, after["generator/labels"])


def test_private_fedgen_round_without_participants_gives_noise(deep, monkeypatch):
    """Over 100 rounds: labels where noise is above zero, at least one."""
    whole, fedgen = private(deep, chosen=(), config=PLAIN, rounds=100, noise_multiplier=2.0)
    state, federation = fedgen.init(PLAIN, whole.federation), whole.federation
    drawn, row = fedgen.fold(PLAIN, state, federation, 0, [], [])
    assert "generator/labels" in drawn and row["generator_loss"] > 0
    untrained(monkeypatch)
    labels = []
    for round in range(100):
        after, row = fedgen.fold(PLAIN, state, federation, round, [], [])
        counts = after["generator/labels"]
        assert row["update_norms"] == [] and "clipped" not in row
        assert abs(int(counts.sum()) - MILLION) <= CLASSES and int(counts.min()) >= 0
        labels.append(counts)
    zero = float((torch.stack(labels) == 0).double().mean())
    assert 0.3 < zero < 0.6  # an eighth of the rounds has no positive one, and all alike
    assert any(len(set(counts.tolist())) == 1 for counts in labels)
    again, _ = fedgen.fold(PLAIN, state, federation, 99, [], [])
    assert torch.equal(again["weights"], after["weights"])
