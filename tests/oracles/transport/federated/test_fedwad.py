"""Algorithm 1: upper bound, symmetry, Theorems 2 and 3, agreement with the network simplex, support."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.transport.federated import Client, Measure, distance_between, federated_distance, server, wasserstein
from tests.oracles.transport.federated.samples import SEEDS, SIZES, draws, emd, fedwad, gaussian, toy

MODES = st.sampled_from(["exact", "approximate"])
PLACES = st.sampled_from([0.5, 0.2, 0.9, "random"])


def pair(n, m, seed):
    return gaussian(n, 2, seed, "mu"), gaussian(m, 2, seed, "nu", offset=1.0)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(SIZES, SIZES, SIZES, SEEDS, MODES, PLACES)
def test_value_is_never_below_the_distance(n, m, support, seed, mode, t):
    mu, nu = pair(n, m, seed)
    result = distance_between(mu, nu, fedwad(mode=mode, support=support, t=t), draws(seed), trace=True)
    assert min(result.values) >= emd(mu, nu) - 1e-9
    assert result.value == pytest.approx(emd(mu, result.xi) + emd(result.xi, nu)), "with xi's masses"


@settings(deadline=None, max_examples=20, derandomize=True)
@given(SIZES, SIZES, SIZES, SEEDS, PLACES)
def test_theorem_2_sum_of_distances_never_rises(n, m, support, seed, t):
    mu, nu = pair(n, m, seed)
    result = distance_between(mu, nu, fedwad(support=support, t=t, iterations=6), draws(seed), trace=True)
    falling = [*result.sums, result.value]
    assert max(np.diff(falling)) <= 1e-9
    # A^(k) by its definition, for the last iteration of a run at t = 1/2
    if t == 0.5:
        before, after = result.measures[-2:]
        halves = [0.5 * wasserstein(before, side) for side in (mu, nu)]
        assert result.sums[-1] >= sum(halves) + 0.5 * wasserstein(mu, nu) - 1e-9
        assert result.sums[-1] >= result.value - 1e-9 and after.size == result.supports[-1]


@settings(deadline=None, max_examples=15, derandomize=True)
@given(SIZES, SIZES, SEEDS, MODES)
def test_value_is_symmetric(n, m, seed, mode):
    mu, nu = pair(n, m, seed)
    one, other = (distance_between(*sides, fedwad(mode=mode), draws()).value for sides in ((mu, nu), (nu, mu)))
    assert one == pytest.approx(other, rel=1e-9)


@settings(deadline=None, max_examples=12, derandomize=True)
@given(SIZES, SIZES, SEEDS, st.sampled_from([0.5, 0.7]))
def test_fedwad_approaches_equal_samples_geometrically(n, support, seed, t):
    """Both clients answer alike, so each iteration leaves 1 - t of the way: 1e-6 of it after 20 at t = 1/2."""
    mu = gaussian(n, 2, seed)
    result = distance_between(mu, mu, fedwad(support=support, t=t, iterations=20), draws(seed), trace=True)
    way = 2 * wasserstein(result.measures[0], mu)
    assert result.value == pytest.approx(way * (1 - t) ** 20, rel=1e-4, abs=1e-9 * way)


def test_distance_between_nears_network_simplex_at_full_support():
    """Facts sheet: 9.5e-5 at S = n = 200, K = 20; ten of our seeds: 4e-5 to 1.0e-4, mean 7e-5."""
    mu, nu = toy(200, 200, 0)
    result = distance_between(mu, nu, fedwad(support=200, iterations=20), draws(0))
    assert set(result.supports) == {200} and result.xi.weights is None
    assert result.value / emd(mu, nu) - 1 < 1e-4


def test_gap_falls_with_the_support():
    """Facts sheet: 1.6e-2, 4.0e-3 at S = 2, 10."""
    mu, nu = toy(200, 200, 0)
    for support, gap in ((2, 1.6e-2), (10, 4.0e-3)):
        options = fedwad(mode="approximate", support=support, iterations=20)
        result = distance_between(mu, nu, options, draws())
        assert gap / 2 < result.value / emd(mu, nu) - 1 < gap * 1.5
        assert set(result.supports) == {support}
        assert result.server_only[0] == pytest.approx(emd(mu, nu), rel=1e-3), "facts sheet: 3e-4, 2e-4"


def test_support_growth_is_bounded_for_unequal_sizes():
    mu, nu = toy(60, 20, 0)
    result = distance_between(mu, nu, fedwad(support=60, iterations=6), draws())
    sizes = [60, *result.supports]
    for before, after in zip(sizes, sizes[1:], strict=False):
        assert after <= 2 * before + 60 + 20 - 3, "three plans, each with one entry fewer than its two sides"
    assert result.xi.counts.sum() <= 60, "parts of the least common multiple of 60, 20 and 60"


def test_trace_records_course_without_changing_value():
    mu, nu = toy(30, 20, 0)
    for mode in ("exact", "approximate"):
        bare, traced = (distance_between(mu, nu, fedwad(mode=mode, t="random"), draws(), flag) for flag in (0, 1))
        assert bare.value == traced.value == traced.values[-1] and bare.supports == traced.supports
        assert len(traced.values) == len(traced.sums) == len(traced.measures) - 1 == 4
        assert bare.values == bare.sums == bare.measures == bare.server_only == []
        for value, xi in zip(traced.values, traced.measures[1:], strict=True):
            assert value == pytest.approx(emd(mu, xi) + emd(xi, nu))


def test_distance_between_draws_t_for_every_call():
    asked = []

    def noted(*names):
        asked.append(names)
        return draws()(*names)

    distance_between(*toy(5, 5, 0), fedwad(t="random", iterations=2), noted)
    expected = [("start",), *((who, "t", k) for k in (1, 2) for who in ("mu", "nu", "server"))]
    assert asked == expected


def translates(seed):
    """mu, nu and xi^0 that differ by their means alone (as Gaussians of one covariance), and nu's mean from mu's."""
    shape, (v, u) = gaussian(12, 3, seed).points, gaussian(2, 3, seed, "offsets").points * 4
    return Measure(shape), Measure(shape + v), Measure(shape + u), v


@settings(deadline=None, max_examples=15, derandomize=True)
@given(SEEDS, st.floats(0.1, 0.9), st.sampled_from(["exact", "approximate"]))
def test_theorem_3_one_iteration_suffices_for_translates(seed, t, mode):
    mu, nu, xi, v = translates(seed)
    options = fedwad(t=t, mode=mode)
    answers = [Client(side, options, name, draws()).interpolated(xi, 1, False) for side, name in ((mu, "a"), (nu, "b"))]
    _, between = server.next_measure(*answers, t, mode)
    assert server.server_only(between, t) == pytest.approx(np.linalg.norm(v))


class Recorded:
    def __init__(self, client, tape):
        self.client, self.tape = client, tape

    def interpolated(self, *arguments):
        self.tape.append(self.client.interpolated(*arguments))
        return self.tape[-1]

    def distance(self, xi):
        self.tape.append(self.client.distance(xi))
        return self.tape[-1]


class Replayed:
    def __init__(self, tape):
        self.interpolated = self.distance = lambda *_: tape.pop(0)


@pytest.mark.parametrize("mode", ["exact", "approximate"])
@pytest.mark.parametrize("trace", [False, True])
def test_messages_alone_give_the_value(mode, trace):
    options = fedwad(mode=mode, t="random")
    sides = {name: Client(side, options, name, draws()) for name, side in zip("ab", toy(20, 15, 0), strict=True)}
    tapes = {name: [] for name in sides}
    parties = (Recorded(client, tapes[name]) for name, client in sides.items())
    recorded = federated_distance(*parties, options, 2, draws(), trace)
    sent = [message for tape in tapes.values() for message in tape]
    assert sum(message.distance is not None for message in sent) == (10 if trace else 2)
    replayed = federated_distance(*map(Replayed, tapes.values()), options, 2, draws(), trace)
    assert replayed.value == recorded.value and replayed.sums == recorded.sums
    assert not any(tapes.values())


@pytest.mark.parametrize("mode", ["exact", "approximate"])
def test_messages_hold_no_sample(mode):
    mu, _ = toy(20, 15, 0)
    xi = Measure(draws()("start").standard_normal((6, 2)))
    sent = Client(mu, fedwad(mode=mode), "mu", draws()).interpolated(xi, 1, True).measure
    assert not np.shares_memory(sent.points, mu.points)
    assert not (sent.points[:, None] == mu.points).all(-1).any()
    assert sent.size == (6 if mode == "approximate" else sent.size) <= 6 + 20 - 1
