"""Looking again after adding seeds keeps the share of false verdicts; power and suggested seeds."""

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.statistics.effects import MAX_SEEDS, EffectEstimate, looks, power, seeds_suggested

ALPHA = 0.05


def first(planned, count=4):
    return [(look.seeds, look.share) for look in looks(planned, 10**13)[:count]]


def test_looks_double_with_shares_summing_to_one():
    assert first(3) == [(3, pytest.approx(2 / 3)), (6, pytest.approx(2 / 9)), (12, pytest.approx(2 / 27)),
                        (24, pytest.approx(2 / 81))]  # fmt: skip
    assert sum(share for _, share in first(3, 40)) == pytest.approx(1, abs=1e-12)


def test_last_look_waits_for_enough_seeds():
    assert [len(looks(3, n)) for n in (0, 2, 3, 4, 5, 6, 11, 12)] == [0, 0, 1, 1, 1, 2, 2, 3]


def paths(rng, count, seeds):
    """Null effects [count, seeds]: true mean 0."""
    return rng.normal(size=(count, seeds))


@pytest.mark.parametrize("planned", [2, 3, 5])
def test_any_stopping_keeps_false_verdicts_at_5_percent(planned):
    """Whoever could look at all of five looks and stop at the one they like."""
    count, effects = 40_000, paths(np.random.default_rng(planned), 40_000, planned * 16)
    false, fixed = np.zeros(count, bool), np.zeros(count, bool)
    for seeds, share in first(planned, 5):
        own = effects[:, :seeds]
        p = 2 * stats.t.sf(np.abs(own.mean(1)) / (own.std(1, ddof=1) / np.sqrt(seeds)), seeds - 1)
        false |= p / share < ALPHA
        fixed |= p < ALPHA
    assert false.mean() <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / count)
    assert false.mean() >= 0.035  # nothing is given away: the first look alone makes 3.3%
    assert fixed.mean() > 0.10  # what looking without a rule does


def test_suggested_seeds_keep_false_verdicts_at_5_percent():
    """With the program's own intervals and its own suggestions: look, add what it says, look again."""
    rng, count, false = np.random.default_rng(11), 600, 0
    for effects in paths(rng, count, 103):
        seeds = 3
        for _ in range(6):
            look = looks(3, seeds)[-1]
            own = effects[: look.seeds]
            found = EffectEstimate(own.mean(), look.seeds, own.std(ddof=1))
            if found.half(ALPHA * look.share) < abs(found.effect):
                false += 1
                break
            more = seeds_suggested(found, abs(found.effect), 3, seeds, 1)
            if seeds + more > 103:
                break
            assert looks(3, seeds + more)[-1].seeds == seeds + more  # what is suggested leads to a look
            seeds += more
    assert false / count <= ALPHA + 3 * np.sqrt(ALPHA * (1 - ALPHA) / count)
    assert false / count >= 0.02


@pytest.mark.parametrize(("gap", "seeds", "alpha"), [(1.0, 6, 0.0111), (0.5, 12, 0.05), (2.0, 3, 0.0333)])
def test_power_is_that_of_the_noncentral_t(gap, seeds, alpha):
    critical = stats.t.ppf(1 - alpha / 2, seeds - 1)
    expected = stats.nct.sf(critical, seeds - 1, gap * np.sqrt(seeds))
    assert power(EffectEstimate(gap, 3, 1.0), gap, alpha, seeds) == pytest.approx(expected, abs=0.01)


def test_power_with_shared_items_by_simulation():
    rng, found = np.random.default_rng(0), EffectEstimate(0.8, 3, 0.5, shared=0.02)
    own = rng.normal(0.8, 0.5, (20_000, 6))
    t, z = stats.t.ppf(0.975, 5), stats.norm.ppf(0.975)
    halves = np.sqrt(t**2 * own.var(1, ddof=1) / 6 + z**2 * 0.02)
    assert power(found, 0.8, 0.05, 6) == pytest.approx((own.mean(1) > halves).mean(), abs=0.015)


def test_power_where_no_seed_differs_from_another():
    assert power(EffectEstimate(1.0, 3, 0.0), 0.5, 0.04, 6) == 1  # 2^-5 = .031
    assert power(EffectEstimate(1.0, 3, 0.0), 0.5, 0.03, 6) == 0 == power(EffectEstimate(1.0, 3, 0.0), 0.0, 0.9, 6)
    assert power(EffectEstimate(1.0, 3, 0.0, shared=0.01, items=0.01), 0.3, 0.05, 6) == 1
    assert power(EffectEstimate(1.0, 3, 0.0, shared=0.01, items=0.01), 0.1, 0.05, 6) == 0


def test_seeds_suggested_reaches_look_at_80_percent_power():
    found = EffectEstimate(1.0, 3, 0.5)
    more = seeds_suggested(found, 1.0, 3, 3, 2)
    place = [seeds for seeds, _ in first(3, 6)].index(3 + more)
    before, at = (power(found, 1.0, ALPHA * share / 2, seeds) for seeds, share in first(3, 6)[place - 1 : place + 1])
    assert before < 0.8 <= at and more == 9
    assert seeds_suggested(found, 1.0, 3, 5, 2) == 7  # two of the nine are there
    assert seeds_suggested(EffectEstimate(1.0, 2, 0.01), 1.0, 3, 2, 2) == 1  # to the first look
    assert seeds_suggested(EffectEstimate(1.0, 1, None), 1.0, 3, 1, 1) is None
    assert (
        seeds_suggested(EffectEstimate(0.1, 3, 0.01, shared=0.01), 0.1, 3, 3, 1) == MAX_SEEDS + 1
    )  # too few test items


def test_seeds_suggested_grows_with_claims_and_reaches_looks():
    estimate = EffectEstimate(effect=1.0, seeds=3, spread=1.0)
    alone, among = (seeds_suggested(estimate, 1.0, 3, 3, claims) for claims in (1, 40))
    assert 0 < alone < among <= MAX_SEEDS
    clear = EffectEstimate(effect=100.0, seeds=6, spread=1.0)
    assert seeds_suggested(clear, 100.0, 3, 6, 1) == 6  # the look at 6 is over: the next is at 12
