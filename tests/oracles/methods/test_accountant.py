"""The accountant of private training: closed forms, the paper's sum, a published value."""

import math

import pytest

from knot_runner.methods.around.privacy.accountant import epsilon_after, neighbors, noise_for
from tests.accounted import accounted, mechanism


def converted(divergence, delta):
    """min over orders of r + log(1 - 1/a) - log(delta a) / (a - 1) (Canonne, Kamath and Steinke 2020, Prop. 12)."""
    orders = [1 + step / 10 for step in range(1, 100)] + list(range(11, 64))
    return min(divergence(a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in orders)


@accounted
@pytest.mark.parametrize(("z", "rounds", "delta"), [(1.0, 60, 1e-3), (4.0, 10, 1e-5), (2.0, 1, 1e-2)])
def test_epsilon_after_equals_gaussian_mechanism_at_full_participation(z, rounds, delta):
    """Its Renyi divergence of order a is a / (2 z^2) a round, however clients are drawn."""
    expected = converted(lambda a: rounds * a / (2 * z * z), delta)
    for sampling in ("poisson", "fixed"):
        spec = mechanism(z, 60, 60, sampling, rounds=rounds, delta=delta)
        assert epsilon_after(spec)(rounds) == pytest.approx(expected, rel=1e-9)
        assert neighbors(spec) == "add or remove"


def subsampled(order, q, z):
    """log sum_j C(a, j) (1 - q)^(a - j) q^j exp(j (j - 1) / (2 z^2)) / (a - 1) (Mironov et al. 2019, section 3.3)."""
    terms = [
        math.comb(order, j) * (1 - q) ** (order - j) * q**j * math.exp(j * (j - 1) / (2 * z * z))
        for j in range(order + 1)
    ]
    return math.log(sum(terms)) / (order - 1)


@accounted
def test_epsilon_after_matches_published_poisson_sum():
    """Where the best order is a whole one; the accountant may do better by its fractional orders, never worse."""
    z, rounds, delta, q = 4.0, 100, 1e-5, 1 / 20
    by_hand = min(
        rounds * subsampled(a, q, z) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in range(11, 64)
    )
    spent = epsilon_after(mechanism(z, 3, 60, rounds=rounds, delta=delta))
    assert spent(rounds) == pytest.approx(by_hand, rel=1e-9) and spent(0) == 0.0


@accounted
def test_epsilon_after_halves_noise_for_fixed_sampling():
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    spec, poisson = (mechanism(3.0, 6, 60, sampling, rounds=20, delta=1e-3) for sampling in ("fixed", "poisson"))
    other = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(60, 6, dp_accounting.GaussianDpEvent(1.5))
    other.compose(event, 20)
    assert epsilon_after(spec)(20) == pytest.approx(other.get_epsilon(1e-3), rel=1e-12)
    assert neighbors(spec) == "replace" and epsilon_after(spec)(20) > epsilon_after(poisson)(20)


def test_epsilon_after_is_infinite_without_noise():
    assert epsilon_after(mechanism(0.0, 3, 6))(5) is None


@accounted
def test_noise_for_returns_least_sufficient_noise():
    facts = {"rounds": 40, "delta": 0.01}
    actual = noise_for(mechanism(0.0, 60, 60, **facts), 8.0)
    assert round(actual, 4) == actual
    assert epsilon_after(mechanism(actual, 60, 60, **facts))(40) <= 8.0
    assert epsilon_after(mechanism(actual - 0.0003, 60, 60, **facts))(40) > 8.0


@accounted
def test_epsilon_after_bounds_fixed_sampling_by_unsampled():
    """3 of 5 clients at z = 0.5 for 4 rounds: the bound of sampling is 63.1; that of the Gaussian mechanism, whose
    sum changes by 2 C where one client is replaced, is rounds * a / (2 (z / 2)^2) at order a."""
    delta, rounds, z = 5**-1.1, 4, 0.5
    spec = mechanism(z, 3, 5, "fixed", rounds=rounds, delta=delta)
    unsampled = converted(lambda a: rounds * a / (2 * (z / 2) ** 2), delta)
    assert epsilon_after(spec)(rounds) == pytest.approx(unsampled, rel=1e-9) == pytest.approx(44.5, abs=0.1)
    assert neighbors(spec) == "replace"
