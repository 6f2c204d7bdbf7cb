"""Private SCAFFOLD against loops typed out by hand: model and control variate are clipped together."""

import dataclasses
import math

import pytest
import torch

from knot_runner.methods.around.privacy import UserPrivacy
from knot_runner.methods.messages import in_rounds
from tests.unit.methods.federated import worlds
from tests.unit.methods.federated.plain import play
from tests.unit.methods.federated.worlds import settings

SCALE = 0.8
HP = settings("scaffold", aggregation="uniform")


def private(world, **changes):
    """(``world``, private SCAFFOLD): everybody in every round, neither clipped nor noised unless ``changes`` say so."""
    spec = UserPrivacy(**{"clip_norm": None, "noise_multiplier": 0.0, "sampling": "fixed", "participants": 5,
                          "clients": 5, "scales": (("control", SCALE),), **changes})  # fmt: skip
    own = dataclasses.replace(world.federation, sampling=spec.sampling)
    world = dataclasses.replace(world, federation=own).with_training(clients_per_round=spec.participants)
    return world, in_rounds(worlds.private(HP, world.federation, spec), HP)


def test_messages_are_clipped_whole_and_summed(world):
    """Three rounds of five clients, four of whom were expected; c_k goes by what its client sends."""
    bound, expected = 0.25, 4
    whole, scaffold = private(world, clip_norm=bound, participants=expected, sampling="poisson")
    everyone = dataclasses.replace(whole.federation, chosen=(0, 1, 2, 3, 4))
    state, seen = play(dataclasses.replace(whole, federation=everyone), HP, scaffold, 3)
    w = everyone.model.weights
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in range(5)]
    shares = []
    for requests, trained, row in seen:
        models, controls, norms = torch.zeros_like(w), torch.zeros_like(w), []
        for client, (request, result) in enumerate(zip(requests, trained, strict=True)):
            torch.testing.assert_close(request.control, c - own[client], rtol=1e-12, atol=1e-14)
            model = result.weights - w
            change = (own[client] - c + (w - result.weights) / (result.steps * 0.1)) - own[client]
            squares = sum(float(x) ** 2 for x in model) + SCALE**2 * sum(float(x) ** 2 for x in change)
            share = min(1.0, bound / math.sqrt(squares))
            models, controls = models + share * model, controls + share * change
            own[client] = own[client] + share * change
            norms.append(math.sqrt(squares))
            shares.append(share)
        w, c = w + models / expected, c + controls / 5
        assert row["update_norms"] == pytest.approx(norms, rel=1e-12)
        assert row["clipped"] == sum(norm > bound for norm in norms) / 5
    torch.testing.assert_close(state["weights"], w, rtol=0, atol=1e-12)
    torch.testing.assert_close(state["control"], c, rtol=0, atol=1e-12)
    for client in range(5):
        torch.testing.assert_close(state[f"client/{client}/control"], own[client], rtol=0, atol=1e-12)
    assert min(shares) < 0.9 and max(shares) == 1.0  # some were clipped, some were not


def test_private_scaffold_empty_round_noises_model_and_control(deep):
    """Over 200 rounds: standard deviations zC / (qK) and zC / (sK) within 4 of their standard errors, independent."""
    whole, scaffold = private(deep, clip_norm=0.5, noise_multiplier=2.0, sampling="poisson", participants=2)
    federation = whole.with_training(rounds=200).federation
    state, moves, turns = scaffold.init(HP, federation), [], []
    for round in range(200):
        after, row = scaffold.fold(HP, state, federation, round, [], [])
        assert row == {"bytes_down": 0, "bytes_up": 0, "update_norms": []} and after.keys() == {*state, "control"}
        moves.append(after["weights"] - state["weights"])
        turns.append(after["control"])
    again, _ = scaffold.fold(HP, state, federation, 199, [], [])
    assert torch.equal(again["control"], turns[-1]) and torch.equal(again["weights"], after["weights"])
    moves, turns = torch.stack(moves).flatten(), torch.stack(turns).flatten()
    error = 4 / math.sqrt(2 * len(moves))
    assert float(moves.std()) == pytest.approx(2.0 * 0.5 / 2, rel=error)
    assert float(turns.std()) == pytest.approx(2.0 * 0.5 / (SCALE * 5), rel=error)
    assert abs(float(torch.corrcoef(torch.stack([moves, turns]))[0, 1])) < 4 / math.sqrt(len(moves))
