"""Algorithm 1: upper bound, symmetry, Theorems 2 and 3, agreement with the network simplex, support."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knot_runner.transport.federated import Measure, distance_between, wasserstein
from tests.oracles.transport.federated.samples import SEEDS, SIZES, draws, emd, fedwad, gaussian, toy

MODES = st.sampled_from(["exact", "approximate"])
PLACES = st.sampled_from([0.5, 0.2, 0.9, "random"])


def pair(n: int, m: int, seed: int) -> tuple[Measure, Measure]:
    return gaussian(n, 2, seed, "mu"), gaussian(m, 2, seed, "nu", offset=1.0)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(SIZES, SIZES, SIZES, SEEDS, MODES, PLACES)
def test_value_is_never_below_the_distance(n: int, m: int, support: int, seed: int, mode: str, t: float | str) -> None:
    mu, nu = pair(n, m, seed)
    result = distance_between(mu, nu, fedwad(mode=mode, support=support, t=t), draws(seed), trace=True)
    assert min(result.values) >= emd(mu, nu) - 1e-9
    assert result.value == pytest.approx(emd(mu, result.xi) + emd(result.xi, nu)), "with xi's masses"


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SIZES, SIZES, SIZES, SEEDS, PLACES)
def test_theorem_2_sum_of_distances_never_rises(n: int, m: int, support: int, seed: int, t: float | str) -> None:
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


@settings(deadline=None, max_examples=30, derandomize=True)
@given(SIZES, SIZES, SEEDS, MODES)
def test_value_is_symmetric(n: int, m: int, seed: int, mode: str) -> None:
    mu, nu = pair(n, m, seed)
    one, other = (distance_between(*sides, fedwad(mode=mode), draws()).value for sides in ((mu, nu), (nu, mu)))
    assert one == pytest.approx(other, rel=1e-9)


@settings(deadline=None, max_examples=25, derandomize=True)
@given(SIZES, SIZES, SEEDS, st.sampled_from([0.5, 0.7]))
def test_fedwad_approaches_equal_samples_geometrically(n: int, support: int, seed: int, t: float) -> None:
    """Both clients answer alike, so each iteration leaves 1 - t of the way: 1e-6 of it after 20 at t = 1/2."""
    mu = gaussian(n, 2, seed)
    result = distance_between(mu, mu, fedwad(support=support, t=t, iterations=20), draws(seed), trace=True)
    way = 2 * wasserstein(result.measures[0], mu)
    assert result.value == pytest.approx(way * (1 - t) ** 20, rel=1e-4, abs=1e-9 * way)


def test_distance_between_nears_network_simplex_at_full_support() -> None:
    """Facts sheet: 9.5e-5 at S = n = 200, K = 20; ten of our seeds: 4e-5 to 1.0e-4, mean 7e-5."""
    gaps = []
    for seed in range(2):
        mu, nu = toy(200, 200, seed)
        gaps.append(distance_between(mu, nu, fedwad(support=200, iterations=20), draws(seed)).value / emd(mu, nu) - 1)
    assert np.mean(gaps) < 1e-4 and max(gaps) < 1.5e-4


def test_modes_agree_at_full_support() -> None:
    """Theorem 1, at every one of 60 interpolations."""
    mu, nu = toy(40, 40, 0)
    modes = (fedwad(mode=mode, support=40, iterations=20) for mode in ("exact", "approximate"))
    exact, approximate = (distance_between(mu, nu, options, draws()) for options in modes)
    assert exact.value == pytest.approx(approximate.value, rel=1e-12)
    assert np.allclose(exact.xi.points, approximate.xi.points, atol=1e-12)


def test_gap_falls_with_the_support() -> None:
    """Facts sheet: 1.6e-2, 4.0e-3, 4.1e-4 at S = 2, 10, 100."""
    mu, nu = toy(200, 200, 0)
    for support, gap in ((2, 1.6e-2), (10, 4.0e-3), (100, 4.1e-4)):
        options = fedwad(mode="approximate", support=support, iterations=20)
        result = distance_between(mu, nu, options, draws())
        assert gap / 2 < result.value / emd(mu, nu) - 1 < gap * 1.5
        assert set(result.supports) == {support}
        assert result.server_only[0] == pytest.approx(emd(mu, nu), rel=1e-3), "facts sheet: 3e-4, 2e-4, 4e-5"


@pytest.mark.thorough
def test_exact_mode_converges_with_constant_support() -> None:
    """The pruning of masses made the published value rise to 2e-3, with 19 636 points (facts sheet)."""
    mu, nu = toy(500, 500, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = distance_between(mu, nu, fedwad(support=500, iterations=20), draws(), trace=True)
    assert set(result.supports) == {500} and result.xi.weights is None
    gaps = np.array(result.values) / emd(mu, nu) - 1
    assert 0 <= gaps[-1] < 1e-4 and gaps[-1] == gaps.min()
    assert max(np.diff(result.sums)) <= 1e-9


def test_support_growth_is_bounded_for_unequal_sizes() -> None:
    mu, nu = toy(60, 20, 0)
    result = distance_between(mu, nu, fedwad(support=60, iterations=6), draws())
    sizes = [60, *result.supports]
    for before, after in zip(sizes, sizes[1:], strict=False):
        assert after <= 2 * before + 60 + 20 - 3, "three plans, each with one entry fewer than its two sides"
    assert result.xi.counts.sum() <= 60, "parts of the least common multiple of 60, 20 and 60"


def test_trace_records_course_without_changing_value() -> None:
    mu, nu = toy(30, 20, 0)
    for mode in ("exact", "approximate"):
        bare, traced = (distance_between(mu, nu, fedwad(mode=mode, t="random"), draws(), flag) for flag in (0, 1))
        assert bare.value == traced.value == traced.values[-1] and bare.supports == traced.supports
        assert len(traced.values) == len(traced.sums) == len(traced.measures) - 1 == 4
        assert bare.values == bare.sums == bare.measures == bare.server_only == ()
        for value, xi in zip(traced.values, traced.measures[1:], strict=True):
            assert value == pytest.approx(emd(mu, xi) + emd(xi, nu))


def test_distance_between_draws_t_for_every_call() -> None:
    asked: list[tuple[object, ...]] = []

    def noted(*names: object) -> np.random.Generator:
        asked.append(names)
        return draws()(*names)

    distance_between(*toy(5, 5, 0), fedwad(t="random", iterations=2), noted)
    expected = [("start",), *((who, "t", k) for k in (1, 2) for who in ("mu", "nu", "server"))]
    assert asked == expected
