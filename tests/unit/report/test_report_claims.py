"""Verdicts from records: what they decide, and what is said where they do not."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.run_folders import load_runs
from knot_runner.util.errors import UserError
from tests.unit.report.claimed import claim, grid, judged, knot, rewrite


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


# ---------------------------------------------------------------------------------------------------------- mistakes


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
