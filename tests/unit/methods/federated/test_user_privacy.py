"""Clipping, noise and Poisson draws of private training, against loops and formulas typed out by hand."""

import dataclasses
import math

import pytest
import torch

from knot_runner.engine.federated.cohort import Trained
from knot_runner.methods.contract import METHODS
from knot_runner.methods.federated.user_privacy import UserPrivacy, private_mean
from tests.unit.methods.federated.worlds import SERVER, World, holding_out, rounds_of, settings


def privacy(**changes) -> UserPrivacy:
    """Everybody takes part; nothing is clipped and no noise added, unless ``changes`` say so."""
    return UserPrivacy(**{"clip_norm": None, "noise_multiplier": 0.0, "sampling": "fixed", "participants": 5,
                          "clients": 5, **changes})  # fmt: skip


def came(client: int, weights: torch.Tensor) -> Trained:
    return Trained(client, weights, torch.empty(0), 1, 0.5, 0, 0, True)


def private(world: World, spec: UserPrivacy) -> World:
    federation = dataclasses.replace(world.federation, privacy=spec)
    return World(federation, world.engine).with_training(clients_per_round=spec.participants)


def played(world: World, algorithm: str = "fedavg", rounds: int = 2, **changes):
    """(State, rows, requests of every round) of ``rounds`` rounds."""
    found = rounds_of(world, settings(algorithm, **{"aggregation": "uniform", **changes}), rounds)
    return found[-1].after, [one.row for one in found], [one.requests for one in found]


START = torch.tensor([1.0, -2.0], dtype=torch.float64)
MOVES = [[3.0, 4.0], [0.3, -0.4], [0.0, 1.0]]


def test_private_mean_divides_clipped_sum_by_expected_number():
    """Norms 5, .5 and 1 with C = 1: the first is a fifth of itself; of 4 clients expected 3 came."""
    trained = [came(client, START + torch.tensor(move, dtype=torch.float64)) for client, move in enumerate(MOVES)]
    spec = privacy(clip_norm=1.0, participants=4, clients=8, sampling="poisson")
    mean, row = private_mean(spec, 0, 0, START, trained)
    by_hand = [1.0 + (3 / 5 + 0.3 + 0) / 4, -2.0 + (4 / 5 - 0.4 + 1) / 4]
    assert mean.tolist() == pytest.approx(by_hand, abs=1e-14)
    assert row["update_norms"] == pytest.approx([5, 0.5, 1]) and row["clipped"] == pytest.approx(1 / 3)


def test_private_mean_keeps_small_updates_beside_large():
    """1 + 2^-24 + 2^-24: each addition in float32 would round to 1."""
    trained = [came(client, torch.tensor([move])) for client, move in enumerate((1.0, 2.0**-24, 2.0**-24))]
    mean, _ = private_mean(privacy(participants=1), 0, 0, torch.zeros(1), trained)
    assert mean.dtype == torch.float32 and mean.tolist() == [1 + 2.0**-23]


def test_private_mean_noise_std_equals_z_times_clip():
    """100,000 draws: the sample standard deviation is within 1% (4.5 of its standard errors), the mean within 4 of
    its own."""
    size, z, clip, expected = 100_000, 0.7, 3.0, 20
    start = torch.zeros(size, dtype=torch.float64)
    spec = privacy(clip_norm=clip, noise_multiplier=z, participants=expected, clients=60)
    noise = private_mean(spec, 5, 2, start, [])[0] * expected
    assert float(noise.std()) == pytest.approx(z * clip, rel=0.01)
    assert abs(float(noise.mean())) < 4 * z * clip / math.sqrt(size)
    assert float((noise.abs() < z * clip).double().mean()) == pytest.approx(0.6827, abs=0.006)


def test_private_mean_noise_depends_on_seed_and_round():
    spec = privacy(clip_norm=1.0, noise_multiplier=1.0)
    first, row = private_mean(spec, 1, 3, START, [])
    assert row == {"update_norms": []} and not torch.equal(first, START)
    assert torch.equal(first, private_mean(spec, 1, 3, START, [])[0])
    for seed, round in ((1, 4), (2, 3)):
        assert not torch.equal(first, private_mean(spec, seed, round, START, [])[0])
    assert torch.equal(private_mean(privacy(), 1, 3, START, [])[0], START)


def test_poisson_draw_samples_clients_independently_at_rate():
    """4,000 rounds of 12 clients at q = 1/4: frequencies within 4 standard errors of q, counts as binomial ones."""
    spec, rounds, rate = privacy(sampling="poisson", participants=3, clients=12), 4000, 0.25
    clients = range(100, 112)
    draws = [spec.poisson_draw(clients, 7, round) for round in range(rounds)]
    error = math.sqrt(rate * (1 - rate) / rounds)
    for client in clients:
        assert abs(sum(client in draw for draw in draws) / rounds - rate) < 4 * error
    sizes = torch.tensor([len(draw) for draw in draws], dtype=torch.float64)
    assert float(sizes.mean()) == pytest.approx(3, abs=4 * math.sqrt(12) * error)
    assert float(sizes.var()) == pytest.approx(12 * rate * (1 - rate), rel=0.1)
    assert 0 in sizes and draws[0] == spec.poisson_draw(clients, 7, 0) != spec.poisson_draw(clients, 8, 0)
    assert all(draw == sorted(draw) for draw in draws)


def test_federation_drawn_follows_privacy_sampling(linear):
    poisson = privacy(sampling="poisson", participants=3)
    world = private(linear, poisson)
    drawn = [world.federation.drawn(round) for round in range(20)]
    assert drawn == [poisson.poisson_draw(range(5), 3, round) for round in range(20)]
    assert len({len(own) for own in drawn}) > 2
    fixed = private(linear, privacy(participants=3)).federation
    assert [fixed.drawn(round) for round in range(4)] == [linear.federation.drawn(round) for round in range(4)]


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedper", "fedrep", "scaffold"])
@pytest.mark.parametrize("server", ["none", "momentum", "adam"])
def test_unclipped_noiseless_private_round_equals_uniform_mean(deep, algorithm, server):
    changes = {"server": dataclasses.replace(SERVER, optimizer=server, lr=0.5)}
    plain, _, _ = played(deep.with_training(clients_per_round=5), algorithm, **changes)
    state, rows, _ = played(private(deep, privacy()), algorithm, **changes)
    assert plain.keys() == state.keys()
    for name, tensor in plain.items():
        assert torch.allclose(tensor, state[name], rtol=0, atol=1e-12), name
    assert all(row["clipped"] == 0 and len(row["update_norms"]) == 5 for row in rows)


#: Methods whose clients keep models of their own beside what they send, and the fields of a round that say so.
OWN_MODELS = {
    "ditto": {"own_loss"},
    "apfl": {"alpha", "own_loss"},
    "fedala": {"mix", "mix_passes"},
    "fedsoup": {"pool_size"},
}


@pytest.mark.parametrize("changes", [*({"algorithm": name} for name in ("fedavg", "fedper", *OWN_MODELS)),
                                     {"algorithm": "fedavg", "temperature": 0.25}], ids=str)  # fmt: skip
def test_private_round_moves_global_model_by_clipped_updates(deep, changes):
    """By one model of each client, also where clients keep heads or models of their own, and says so."""
    world = private(holding_out(deep), privacy(clip_norm=0.05)).with_training(small_clients="allow")
    hp = settings(**{"aggregation": "uniform", **changes})
    for round, one in enumerate(rounds_of(world, hp, 2)):
        before = one.before["weights"]
        total = torch.zeros_like(before)
        for result in one.trained[:5]:
            move = result.weights - before
            total += move * min(1, 0.05 / math.sqrt(float((move * move).sum())))
        assert torch.allclose(one.after["weights"], before + total / 5, rtol=0, atol=1e-13)
        assert one.row["clipped"] == 1.0 and len(one.row["update_norms"]) == 5
        own = OWN_MODELS.get(hp.algorithm, set()) if round or hp.algorithm != "fedala" else set()
        assert one.row.keys() - {"clipped", "update_norms"} == own


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", *OWN_MODELS])
def test_private_empty_round_noises_global_model_alone(deep, algorithm):
    spec = privacy(clip_norm=1.0, noise_multiplier=1.0, sampling="poisson", participants=3)
    federation = private(holding_out(deep), spec).federation
    hp, method = settings(algorithm, aggregation="uniform"), METHODS[algorithm]
    state = method.init(hp, federation)
    after, row = method.fold(hp, state, federation, 1, [], [])
    assert torch.equal(after["weights"], private_mean(spec, 3, 1, state["weights"], [])[0])
    assert row == {"update_norms": []} and after.keys() == state.keys()


def test_noise_goes_through_the_server_optimizer(linear):
    """One round of FedAdam by hand, from the noisy mean."""
    spec = privacy(clip_norm=0.1, noise_multiplier=0.5)
    world = private(linear, spec)
    adam = dataclasses.replace(SERVER, optimizer="adam", lr=0.1)
    state, _, (requests,) = played(world, rounds=1, server=adam)
    mean, _ = private_mean(spec, 3, 0, requests[0].start.weights, world.engine.train(requests))
    delta = mean - requests[0].start.weights
    step = 0.1 * (1 - 0.9) * delta / ((1 - 0.99) * delta**2 + 0).sqrt().add(1e-3)
    assert torch.allclose(state["weights"], requests[0].start.weights + step, rtol=0, atol=1e-12)


def test_private_fedper_last_head_round_sends_nothing(deep):
    federation = private(deep, privacy(clip_norm=1.0, noise_multiplier=1.0)).federation
    hp, method = settings("fedper", aggregation="uniform", final_head_epochs=1), METHODS["fedper"]
    state, rounds = method.init(hp, federation), federation.training.rounds
    requests = method.plan(hp, state, federation, rounds)
    after, row = method.fold(hp, state, federation, rounds, requests, deep.engine.train(requests))
    assert torch.equal(after["weights"], state["weights"]) and row == {}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedgen"])
def test_running_statistics_stay_where_they_are(deep, algorithm):
    """Each client keeps its own with batchnorm=local; nobody is sent another's."""
    federation = private(deep, privacy()).federation
    hp = settings(algorithm, batchnorm="local", aggregation="uniform")
    buffers, method = torch.tensor([0.0, 1.0]), METHODS[algorithm]
    state = {**method.init(hp, federation), "buffers": buffers}
    requests = method.plan(hp, {**state, "buffers": buffers[:0]}, federation, 0)
    trained = [dataclasses.replace(one, buffers=buffers + one.client) for one in deep.engine.train(requests)]
    after, _ = method.fold(hp, state, federation, 0, requests, trained)
    assert torch.equal(after["buffers"], buffers)
    assert all(torch.equal(after[f"buffers/{client}"], buffers + client) for client in range(5))
