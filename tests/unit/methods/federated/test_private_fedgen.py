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


def test_private_fedgen_generator_learns_from_global_head_alone(deep):
    """Clients' heads may be whatever they are, if their sum is the same."""
    whole, fedgen = private(deep, clip_norm=None)
    state = fedgen.init(HP, whole.federation)
    requests = fedgen.plan(HP, state, whole.federation, 0)
    trained = whole.engine.train(requests)
    apart = torch.zeros_like(trained[0].weights)
    apart[-5:] = 3.0
    shifted = [dataclasses.replace(trained[0], weights=trained[0].weights + apart),
               dataclasses.replace(trained[1], weights=trained[1].weights - apart), *trained[2:]]  # fmt: skip
    after, row = fedgen.fold(HP, state, whole.federation, 0, requests, trained)
    other, same = fedgen.fold(HP, state, whole.federation, 0, requests, shifted)
    assert row["generator_loss"] == pytest.approx(same["generator_loss"], rel=1e-9)
    for name, tensor in after.items():
        assert torch.allclose(tensor.double(), other[name].double(), rtol=0, atol=1e-9), name
    # of the one head every label's share is 1: its loss is the cross-entropy of the head, about log 3, less diversity
    assert row["generator_loss"] > 0.8 * math.log(CLASSES)


def test_private_fedgen_generator_gets_head_after_server_step(deep, monkeypatch):
    (whole, fedgen), given = private(deep), untrained(monkeypatch)
    after, _ = play(whole, HP, fedgen, 1)
    (head,) = given
    assert torch.equal(torch.cat([head.weight.flatten(), head.bias]), after["weights"][-(CLASSES * 5 + CLASSES) :])
    assert torch.equal(head.counts, after["generator/labels"])


def test_private_fedgen_bounds_one_client(deep, monkeypatch):
    whole, fedgen = private(deep, config=PLAIN, clip_norm=0.15)
    untrained(monkeypatch)
    state = fedgen.init(PLAIN, whole.federation)
    requests = fedgen.plan(PLAIN, state, whole.federation, 0)
    trained = whole.engine.train(requests)
    for factor in (1.0, 1e6):
        wild, found = dataclasses.replace(trained[4], weights=trained[4].weights * factor), []
        for sent in ([*trained[:4], wild], trained[:4]):
            after, row = fedgen.fold(PLAIN, state, whole.federation, 0, requests[: len(sent)], sent)
            shares = [min(1.0, 0.15 / norm) for norm in row["update_norms"]]  # labels' shares are sent times these
            told = SCALE * sum(shares) * after["generator/labels"].double() / MILLION
            found.append((EXPECTED * after["weights"], told))
        moved = [with_ - without for with_, without in zip(*found, strict=True)]
        norm = math.sqrt(sum(float(part.square().sum()) for part in moved))
        assert 0 < norm <= 0.15 * (1 + 1e-5)
        assert norm == pytest.approx(0.15, rel=1e-5)


def test_private_fedgen_round_without_participants_gives_noise(deep, monkeypatch):
    """Over 100 rounds: the model's standard deviation z C / (qK); labels where noise is above zero, at least one."""
    whole, fedgen = private(deep, chosen=(), config=PLAIN, rounds=100, noise_multiplier=2.0)
    state, federation = fedgen.init(PLAIN, whole.federation), whole.federation
    drawn, row = fedgen.fold(PLAIN, state, federation, 0, [], [])
    assert "generator/labels" in drawn and row["generator_loss"] > 0
    untrained(monkeypatch)
    moves, labels = [], []
    for round in range(100):
        after, row = fedgen.fold(PLAIN, state, federation, round, [], [])
        counts = after["generator/labels"]
        assert row["update_norms"] == [] and "clipped" not in row
        assert abs(int(counts.sum()) - MILLION) <= CLASSES and int(counts.min()) >= 0
        moves.append(after["weights"] - state["weights"])
        labels.append(counts)
    seen = torch.stack(moves).flatten()
    assert float(seen.std()) == pytest.approx(2.0 * BOUND / EXPECTED, rel=4 / math.sqrt(2 * len(seen)))
    zero = float((torch.stack(labels) == 0).double().mean())
    assert 0.3 < zero < 0.6  # an eighth of the rounds has no positive one, and all alike
    assert any(len(set(counts.tolist())) == 1 for counts in labels)
    again, _ = fedgen.fold(PLAIN, state, federation, 99, [], [])
    assert torch.equal(again["weights"], after["weights"])


def test_private_fedgen_noise_of_label_shares_is_relative_to_their_scale(deep):
    """Over 400 rounds, of the mean that the server reads: standard deviation z C / (s qK), 4 standard errors."""
    whole, _ = private(deep, chosen=(), rounds=400)
    spec = UserPrivacy(BOUND, 2.0, "poisson", EXPECTED, 5, (("labels", SCALE),))
    read = []

    def fold(config, state, federation, round, mean, share):
        read.append(mean["labels"])
        return state, {}

    method = worlds.private(PLAIN, whole.federation, spec)
    rounds = in_rounds(dataclasses.replace(method, fold=fold), PLAIN)
    state = rounds.init(PLAIN, whole.federation)
    for round in range(400):
        rounds.fold(PLAIN, state, whole.federation, round, [], [])
    seen = torch.stack(read).flatten()
    assert float(seen.std()) == pytest.approx(2.0 * BOUND / (SCALE * EXPECTED), rel=4 / math.sqrt(2 * len(seen)))
