"""Clipping, noise and Poisson draws of private training, against loops and formulas typed out by hand."""

import dataclasses
import math

import pytest
import torch

from knot_runner.methods.around.privacy import clip, reduce
from knot_runner.methods.contract import Sent
from knot_runner.methods.messages import in_rounds
from tests.unit.methods.federated import worlds
from tests.unit.methods.federated.worlds import SERVER, Unaccounted, holding_out, rounds_of, sampled, settings


def privacy(**changes):
    """Everybody takes part; nothing is clipped and no noise added, unless ``changes`` say so."""
    return Unaccounted(**{"clip_norm": None, "noise_multiplier": 0.0, "sampling": "fixed", "participants": 5,
                          "clients": 5, **changes})  # fmt: skip


def mean_update(spec, seed, round, updates, like=None):
    """(Mean of the clients' ``updates``, its row); ``like``: the shape of one, if there are none."""
    sent = (clip(spec, Sent(client, 1, {"update": update}), 1) for client, update in enumerate(updates))
    like = updates[0] if like is None else like
    mean, row = reduce(spec, seed, True, round, 1, sent, lambda: {"update": torch.zeros_like(like)})
    return mean["update"], row


def folding(world, spec, config):
    """(The federation as it is sampled, the private method of ``config`` in rounds)."""
    federation = sampled(world, spec).federation
    return federation, in_rounds(worlds.private(config, federation, spec), config)


MOVES = torch.tensor([[3.0, 4.0], [0.3, -0.4], [0.0, 1.0]], dtype=torch.float64)
COSTS = {"bytes_down", "bytes_up"}


def test_reduce_divides_clipped_sum_by_expected_number():
    """Norms 5, .5 and 1 with C = 1: the first is a fifth of itself; of 4 clients expected 3 came."""
    spec = privacy(clip_norm=1.0, participants=4, clients=8, sampling="poisson")
    mean, row = mean_update(spec, 0, 0, MOVES)
    assert mean.tolist() == pytest.approx([(3 / 5 + 0.3 + 0) / 4, (4 / 5 - 0.4 + 1) / 4], abs=1e-14)
    assert row["update_norms"] == pytest.approx([5, 0.5, 1]) and row["clipped"] == pytest.approx(1 / 3)
    updates = [torch.tensor([move]) for move in (1.0, 2.0**-24, 2.0**-24)]  # each addition in float32 would round to 1
    assert mean_update(privacy(participants=1), 0, 0, updates)[0].tolist() == [1 + 2.0**-23]


def test_clip_shrinks_all_parts_alike_by_their_scaled_norm():
    """(3, 4) and 12 by scale 1 / 2: norm sqrt(25 + 36); running statistics are not sent."""
    spec = privacy(clip_norm=2.0, scales=(("control", 0.5),))
    parts = {"update": torch.tensor([3.0, 4.0]).double(), "control": torch.tensor([12.0]).double()}
    sent = clip(spec, Sent(0, 1, {**parts, "statistics": torch.ones(3)}), 1)
    assert sent.facts == {"norm": pytest.approx(math.sqrt(61), rel=1e-14)} and sent.parts.keys() == parts.keys()
    for name, part in parts.items():
        torch.testing.assert_close(sent.parts[name], part * 2 / math.sqrt(61), rtol=1e-14, atol=0)
    assert clip(spec, Sent(0, 1, {"statistics": torch.ones(3)}), 1) == Sent(0, 1, {})


def test_reduce_noise_std_equals_z_times_clip():
    """100,000 draws: standard deviation within 1% (4.5 standard errors), mean within 4 standard errors."""
    size, z, bound, expected = 100_000, 0.7, 3.0, 20
    spec = privacy(clip_norm=bound, noise_multiplier=z, participants=expected, clients=60)
    noise = mean_update(spec, 5, 2, [], torch.zeros(size))[0] * expected
    assert float(noise.std()) == pytest.approx(z * bound, rel=0.01)
    assert abs(float(noise.mean())) < 4 * z * bound / math.sqrt(size)
    assert float((noise.abs() < z * bound).double().mean()) == pytest.approx(0.6827, abs=0.006)


def test_reduce_noise_depends_on_seed_and_round():
    spec = privacy(clip_norm=1.0, noise_multiplier=1.0)
    first, row = mean_update(spec, 1, 3, [], MOVES[0])
    assert row == {"update_norms": []} and bool(first.all())
    assert torch.equal(first, mean_update(spec, 1, 3, [], MOVES[0])[0])
    for seed, round in ((1, 4), (2, 3)):
        assert not torch.equal(first, mean_update(spec, seed, round, [], MOVES[0])[0])
    assert mean_update(privacy(), 1, 3, [], MOVES[0])[0].tolist() == [0.0, 0.0]


def test_poisson_draws_sample_clients_independently_at_rate(linear):
    """4,000 rounds of 12 clients at q = 1/4: frequencies within 4 standard errors of q, counts as binomial ones."""
    rounds, rate = 4000, 0.25
    world = sampled(linear, privacy(sampling="poisson", participants=3))
    federation = dataclasses.replace(world.federation, members=tuple(range(100, 112)), seed=7)
    draws = [federation.drawn(round) for round in range(rounds)]
    error = math.sqrt(rate * (1 - rate) / rounds)
    for client in federation.numbers:
        assert abs(sum(client in draw for draw in draws) / rounds - rate) < 4 * error
    sizes = torch.tensor([len(draw) for draw in draws], dtype=torch.float64)
    assert float(sizes.mean()) == pytest.approx(3, abs=4 * math.sqrt(12) * error)
    assert float(sizes.var()) == pytest.approx(12 * rate * (1 - rate), rel=0.1)
    other = dataclasses.replace(federation, seed=8)
    assert 0 in sizes and draws[:9] == [federation.drawn(round) for round in range(9)]
    assert draws[:9] != [other.drawn(round) for round in range(9)]
    assert all(draw == sorted(draw) for draw in draws)
    fixed = sampled(linear, privacy(participants=3)).federation
    assert [fixed.drawn(round) for round in range(4)] == [linear.federation.drawn(round) for round in range(4)]
    assert {len(fixed.drawn(round)) for round in range(4)} == {3}


@pytest.mark.parametrize(("algorithm", "server"), [
    *((name, "none") for name in ("fedprox", "fedper", "fedrep", "scaffold")),
    *(("fedavg", name) for name in ("momentum", "adam")),
])  # fmt: skip
def test_unclipped_noiseless_private_round_equals_uniform_mean(deep, algorithm, server):
    config = settings(algorithm, aggregation="uniform", server=dataclasses.replace(SERVER, optimizer=server, lr=0.5))
    plain = rounds_of(deep.with_training(clients_per_round=5), config, 2)[-1].after
    world = sampled(deep, privacy())
    rounds = rounds_of(world, config, 2, worlds.private(config, world.federation, privacy()))
    state = rounds[-1].after
    assert plain.keys() == state.keys()
    for name, tensor in plain.items():
        assert torch.allclose(tensor, state[name], rtol=0, atol=1e-12), name
    assert all(one.row["clipped"] == 0 and len(one.row["update_norms"]) == 5 for one in rounds)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "ditto"])
def test_private_empty_round_noises_global_model_alone(deep, algorithm):
    """Where there is no message its shape is that of the clients' messages: of FedPer without a head."""
    spec = privacy(clip_norm=1.0, noise_multiplier=1.0, sampling="poisson", participants=3)
    config = settings(algorithm, aggregation="uniform", batchnorm="local")
    federation, method = folding(holding_out(deep), spec, config)
    state = {**method.init(config, federation), "buffers": torch.tensor([0.0, 1.0])}
    after, row, _ = method.fold(config, state, federation, 1, [], [], None)
    shared = torch.ones_like(state["weights"], dtype=torch.bool)
    if algorithm == "fedper":
        shared = ~federation.layout.mask("head")
    noise, _ = mean_update(spec, 3, 1, [], state["weights"][shared])
    assert torch.equal(after["weights"][shared], state["weights"][shared] + noise)
    assert torch.equal(after["weights"][~shared], state["weights"][~shared])
    assert torch.equal(after["buffers"], state["buffers"])
    assert row == {"bytes_down": 0, "bytes_up": 0, "update_norms": []} and after.keys() == state.keys()


def test_private_fedper_last_head_round_sends_nothing(deep):
    config = settings("fedper", aggregation="uniform", final_head_epochs=1)
    federation, method = folding(deep, privacy(clip_norm=1.0, noise_multiplier=1.0), config)
    state, rounds = method.init(config, federation), federation.training.rounds
    requests = method.plan(config, state, federation, rounds)
    after, row, _ = method.fold(config, state, federation, rounds, requests, deep.engine.train(requests), None)
    assert torch.equal(after["weights"], state["weights"]) and row.keys() == COSTS and row["bytes_up"] == 0
