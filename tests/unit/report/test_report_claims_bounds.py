"""On which side of which bound a claim holds: ``lower``, ``by``, ``below``, and targets that are not reached."""

import math

import pytest

from knot_runner.report.claims.spec import Claim
from knot_runner.report.claims.verdicts import threshold
from tests.unit.report.claimed import claim, grid, judged, rewrite
from tests.unit.report.test_report_claims_measures import courses, rounds_claim

LEVEL = {"against": None}
TREND = {"against": None, "trend": "method.temperature"}


@pytest.mark.parametrize(
    ("changes", "need", "side"),
    [
        ({"expect": "higher"}, 0.0, 1),
        ({"expect": "lower"}, 0.0, -1),
        ({"expect": "higher", "by": 0.25}, 0.25, 1),
        ({"expect": "lower", "by": 0.25}, -0.25, -1),
        ({"expect": "lower", "by": 2.0, "measure": "accuracy"}, -0.02, -1),  # points of a share
        ({"expect": {"above": 90.0}, "measure": "accuracy", **LEVEL}, 0.9, 1),
        ({"expect": {"below": 2.5}, **LEVEL}, 2.5, -1),
        ({"expect": {"ratio": 2.0}}, math.log(2), 1),
        ({"expect": {"below": 20.0}, "measure": "rounds", **LEVEL}, math.log(20), -1),
        ({"expect": {"above": 20.0}, "measure": "rounds", **LEVEL}, math.log(20), 1),
        ({"expect": "lower", "measure": "rounds"}, 0.0, 1),  # fewer rounds are a larger speed-up
        ({"expect": "higher", "measure": "rounds"}, 0.0, -1),
        ({"expect": "rises", "measure": "rounds", **TREND}, 0.0, 1),  # of the rounds themselves
        ({"expect": "falls", "measure": "rounds", **TREND}, 0.0, -1),
        ({"expect": "rises", **TREND}, 0.0, 1),
        ({"expect": "falls", **TREND}, 0.0, -1),
    ],
)
def test_the_bound_of_a_claim_and_its_side(changes, need, side):
    assert threshold(Claim(**claim(**changes))) == (pytest.approx(need), side)


def of_result(factory, values, other=0.0, **changes):
    """The verdict on ``values`` (one per seed) less ``other``, of a number of the results."""
    jobs = grid(factory, seeds=len(values))
    for job in jobs:
        rewrite(job.folder, took=values[job.seed] if job.method == "sinkhorn_e" else other)
    return judged(jobs, claim(measure="result.took", **changes), seeds=len(values))[0]


NEAR_MINUS_2 = (-2.01, -1.99, -2.0)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"expect": "lower", "by": 1.5}, "holds"),
        ({"expect": "lower", "by": 2.5}, "does not hold"),
        ({"expect": "lower", "by": 2.0}, "undecided"),  # the interval is around the effect, the bound within it
        ({"expect": "higher", "by": 1.5}, "does not hold"),
        ({"expect": "lower"}, "holds"),
    ],
)
def test_lower_by_so_much(factory, changes, verdict):
    found = of_result(factory, NEAR_MINUS_2, **changes)
    assert found.verdict == verdict and found.effect == pytest.approx(-2) and found.low < -2 < found.high < 0


COLD_SLOW, COLD_FAST = ((None,) * 3, (10, 11, 9)), ((10, 11, 9), (None,) * 3)


@pytest.mark.parametrize(
    ("rounds", "expect", "verdict"),
    [
        (COLD_FAST, "lower", "holds"),  # at least that fast
        (COLD_FAST, "higher", "does not hold"),
        (COLD_SLOW, "lower", "does not hold"),  # at most that fast
        (COLD_SLOW, "higher", "holds"),
        (COLD_FAST, {"ratio": 8}, "undecided"),  # may be, beyond what was run
        (COLD_SLOW, {"ratio": 0.1}, "undecided"),
    ],
)
def test_a_bound_decides_on_its_own_side_only(federated, rounds, expect, verdict):
    assert judged(courses(federated, *rounds), rounds_claim(expect=expect))[0].verdict == verdict


@pytest.mark.parametrize(("below", "verdict"), [(20, "holds"), (8, "does not hold"), (11, "undecided")])
def test_rounds_against_a_number(federated, below, verdict):
    """11 rounds in the mean: the number itself, no speed-up."""
    jobs = courses(federated, (10, 11, 9), (20, 21, 22))
    found = judged(jobs, rounds_claim(against=None, expect={"below": below}))[0]
    assert found.verdict == verdict and found.effect == pytest.approx((11 * 12 * 10) ** (1 / 3))
    assert found.unit == "rounds" and not found.ratio


def test_the_loss_is_at_the_temperature_and_the_plain_one_at_1(federated):
    jobs = [federated.made(1.0, [0.5], seed=seed) for seed in range(3)]
    level = {"of": {"method.temperature": 1.0}, "expect": {"below": 9}, **LEVEL}
    found = judged(jobs, claim(measure="loss", **level), claim(measure="plain_loss", **level))
    assert [one.effect for one in found] == [pytest.approx(2.5), pytest.approx(1.5)]


def test_a_verdict_is_by_the_p_value_with_looks_and_claims_counted_in(factory):
    """p = .013: enough for one claim at the first look, which may spend .033, and not for one of four alike."""
    alone = of_result(factory, (1.0, 1.2, 0.8))
    assert (alone.verdict, alone.p) == ("holds", pytest.approx(0.0131, abs=1e-4))
    jobs = grid(factory, seeds=3)
    for job in jobs:
        rewrite(job.folder, took=(1.0, 1.2, 0.8)[job.seed] if job.method == "sinkhorn_e" else 0.0)
    four = judged(jobs, *[claim(measure="result.took")] * 4)
    assert {one.verdict for one in four} == {"undecided"} and {one.p for one in four} == {alone.p}


def test_a_p_value_above_the_share_of_the_look_decides_nothing(factory):
    found = of_result(factory, (1.0, 1.4, 0.7))
    assert found.p == pytest.approx(0.0364, abs=1e-4) and found.p < 0.05 <= found.adjusted
    assert found.verdict == "undecided"
