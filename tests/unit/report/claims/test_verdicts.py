"""Verdicts of claims from records: what they decide, and on which side of which bound."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.claims.spec import Claim, planned_seeds
from knot_runner.report.claims.verdicts import threshold
from knot_runner.report.run_folders import load_runs
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.report.claimed import claim, grid, judged, knot, rewrite
from tests.unit.report.claims.test_measures import courses, rounds_claim


def test_holds_does_not_hold_and_undecided(factory):
    jobs = grid(factory)
    found = judged(
        jobs, claim(), claim(expect="lower"), claim(measure="sd", expect="lower"), claim(expect="higher", by=0.9)
    )
    assert [one.verdict for one in found] == ["holds", "does not hold", "holds", "does not hold"]
    alike = judged(grid(factory, skills=(1.0, 1.01)), claim())[0]
    assert alike.verdict == "undecided" and alike.low < 0 < alike.high and alike.more_seeds > 0


def test_the_effect_is_the_paired_mean_of_the_recorded_measures(factory):
    jobs = grid(factory)
    found = judged(jobs, claim(measure="accuracy", dataset="MELD"))[0]
    values = [run.metric("accuracy", "MELD") for run in load_runs(jobs)]
    expected = [100 * (values[i] - values[i + 3]) for i in range(3)]
    assert found.effect == pytest.approx(np.mean(expected)) and found.unit == "points" and found.seeds == 3
    seeds_alone = stats.t.interval(0.95, 2, np.mean(expected), stats.sem(expected))
    assert found.high - found.low >= seeds_alone[1] - seeds_alone[0] - 1e-9
    assert found.basis == "seeds and test items"


def test_distillation_is_compared_with_the_same_runs_before(factory):
    jobs = [knot(factory, "sinkhorn_e", seed, 2.0) for seed in range(3)]
    found = judged(jobs, claim(against="before"))[0]
    assert found.verdict == "holds" and found.runs == 3 and 0 < found.effect < 1


def test_one_seed_is_undecided_and_has_the_interval_of_the_items(factory):
    found = judged(grid(factory, seeds=1), claim())[0]
    assert found.verdict == "undecided" and found.basis == "test items"
    assert found.note == "no verdict before all runs of seeds 0 to 2 are there"
    assert found.low < found.effect < found.high and found.more_seeds is None and found.p is None


def test_holms_correction_is_over_the_claims_that_are_tested(factory):
    jobs = grid(factory)
    one = judged(jobs, claim())[0]
    many = judged(jobs, *[claim(by=0.2) for _ in range(3)], claim(), claim(against={"method.name": "x"}))
    assert one.adjusted == pytest.approx(one.p / (2 / 3))  # the share of the first look
    assert many[3].p == pytest.approx(one.p) and many[3].adjusted == pytest.approx(4 * one.adjusted)
    assert many[4].verdict == "no runs"


def test_runs_that_are_not_made_yet_come_with_the_command(factory):
    jobs = [factory.job(method, seed) for method in ("sinkhorn_e", "entropy_e") for seed in (0, 1)]
    jobs = [replace(job, config={"method": {"name": job.method}}) for job in jobs]
    found = judged(jobs, claim(), command="knot-runner experiment=x")[0]
    assert found.verdict == "no runs" and found.runs == 4
    assert found.note == "2 of 2 effects left out: not run yet; make them with: knot-runner experiment=x"


def test_missing_and_damaged_runs_leave_their_seed_out(factory):
    jobs = grid(factory, seeds=4)
    (jobs[0].folder / "result.json").unlink()
    (jobs[6].folder / "predictions.safetensors").write_bytes(b"damaged")
    found = judged(jobs, claim())[0]
    assert found.seeds == 2 and found.look == 0 and found.verdict == "undecided"
    assert (
        "1 of 4 effects left out: not run yet" in found.note
        and "predictions.safetensors: does not match its digest" in found.note
    )


def test_runs_that_diverge_on_one_side_allow_no_verdict(factory):
    jobs = grid(factory, seeds=4)
    rewrite(jobs[0].folder, status="diverged", metrics={})
    found = judged(jobs, claim(), seeds=4)[0]
    assert found.verdict == "undecided" and found.seeds == 3 and found.look == 4  # a run that diverged is there
    assert "runs diverged on one side alone" in found.note


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expects": "higher"}, "report.claims[0].expects: there is no such setting (did you mean 'expect'?)"),
        ({"expect": "greater"}, "report.claims[0].expect: "),
        ({"expect": {"above": 1}}, "above and below go without against"),
        ({"expect": "rises"}, "rises and falls go with trend"),
        ({"trend": "seed"}, "rises and falls go with trend, and it with them"),
        ({"expect": "rises", "trend": "seed"}, "trend: is over the runs of one kind; leave out against"),
        ({"against": None}, "all others but rises and falls with it"),
        ({"expect": {"below": 1}, "by": 2}, "by: goes with expect=higher and the like, not with a number"),
        ({"text": " "}, "text: is empty; it says what is claimed"),
        ({"against": "after"}, "'after' is not settings"),
        ({"expect": {"ratio": 0}}, "ratios, rounds and bytes are above 0"),
        ({"measure": "rounds", "by": 1}, "is of differences"),
        ({"of": {"method.nam": "x"}}, "there is no setting method.nam (did you mean 'method.name'?)"),
        ({"where": {"task.nome": "x"}}, "there is no setting task.nome"),
        ({"measure": "acuracy"}, "there is no measure 'acuracy' (did you mean 'accuracy'?)"),
        ({"over": "clusters"}, "over is of accuracy"),
        ({"measure": "plain_loss"}, "its runs have no plain_loss"),
        ({"measure": "ari"}, "its runs have no ari"),
        ({"measure": "rounds", "expect": "lower"}, "its runs have no rounds"),
        ({"measure": "result.seconds.total"}, "its runs have no result.seconds.total"),
        ({"measure": "accuracy", "over": "weighted"}, "its runs have no accuracy over weighted"),
        ({"measure": "gap"}, "its runs have no gap"),
    ],
)
def test_a_claim_that_cannot_be_meant_is_one_line(factory, changes, said):
    with pytest.raises(UserError) as caught:
        judged(grid(factory, seeds=1), claim(**changes))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_data_set_that_is_left_out_is_no_mistake(factory):
    found = judged(grid(factory, seeds=2), claim(dataset="Nowhere"))[0]
    assert found.verdict == "no runs" and "no data set Nowhere" in found.note


def test_a_claim_on_other_runs_is_not_asked_for(factory):
    found = judged(grid(factory, seeds=2), claim(where={"task.name": "sa"}))[0]
    assert found.verdict == "no runs" and found.runs == 0 and found.note == ""


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


def test_a_verdict_is_on_the_first_seeds_and_others_wait(factory):
    jobs = grid(factory, seeds=6)
    whole = judged(jobs, claim())[0]
    five = judged([job for job in jobs if job.seed < 5], claim())[0]
    three = judged([job for job in jobs if job.seed < 3], claim())[0]
    assert (whole.look, whole.seeds, whole.share) == (6, 6, pytest.approx(2 / 9))
    assert (five.look, five.seeds, five.planned) == (3, 3, 3) and "the other 2 count once" in five.note
    assert (five.effect, five.p, five.verdict) == (three.effect, three.p, three.verdict)
    assert three.adjusted == pytest.approx(three.p / (2 / 3)) and whole.adjusted == pytest.approx(whole.p / (2 / 9))


def test_seeds_cannot_be_picked(factory):
    """Verdicts are on seeds 0, 1, 2, ...: neither a gap nor a run that is not made, or damaged, is passed over."""
    jobs = grid(factory, seeds=6)
    picked = judged([job for job in jobs if job.seed in (1, 3, 5)], claim())[0]
    assert (picked.verdict, picked.look, picked.p, picked.seeds) == ("undecided", 0, None, 3)
    assert "no verdict before all runs of seeds 0 to 2 are there" in picked.note and picked.low > 0
    (jobs[4].folder / "result.json").unlink()
    assert judged(jobs, claim())[0].look == 3
    (jobs[8].folder / "predictions.safetensors").write_bytes(b"damaged")
    assert judged(jobs, claim())[0].look == 0


def test_the_planned_number_is_the_presets(factory):
    jobs = grid(factory, seeds=5)
    assert [judged(jobs, claim(), seeds=n)[0].look for n in (2, 5, 6)] == [4, 5, 0]
    with refuses():
        judged(jobs, claim(), seeds=1)
    assert planned_seeds({}) == 3
    for wrong in (True, 2.5, "3", 1001):
        with refuses():
            planned_seeds({"seeds": wrong})


def test_claims_without_a_number_yet_are_in_the_family(factory):
    jobs = grid(factory, seeds=3)
    alone = judged(jobs, claim())[0]
    rewrite(jobs[0].folder, took=1.0)
    both = judged(jobs, claim(), claim(dataset="Nowhere"))[0]
    assert both.p == alone.p and both.adjusted == pytest.approx(2 * alone.adjusted)


AUCS = (0.9, 0.99)


def t_interval(values: Any) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, sum(values) / len(values), stats.sem(values))
    return float(low), float(high)


def test_a_claim_cuts_it_too(factory: Any) -> None:
    jobs = grid(factory, seeds=2)
    for job in jobs:
        rewrite(job.folder, transfer={"auc": AUCS[job.seed], "area": AUCS[job.seed]})
    asked = [claim(measure=f"result.transfer.{name}", against=None, expect={"above": 0.5}) for name in ("auc", "area")]
    auc, area = judged(jobs, *asked)
    low, high = t_interval(AUCS)
    assert (auc.low, auc.high) == (pytest.approx(low), 1.0)
    assert (area.low, area.high) == (pytest.approx(low), pytest.approx(high))
