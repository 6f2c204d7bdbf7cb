"""Verdicts of claims from records: what they decide, and on which side of which bound."""

import math

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.claims.items import Want, replicates
from knot_runner.report.claims.spec import Claim, claim_settings
from knot_runner.report.claims.verdicts import threshold
from knot_runner.report.run_folders import load_runs
from knot_runner.report.statistics.effects import EffectEstimate, seeds_suggested
from tests.golden.messages import refuses
from tests.of_papers import of_papers
from tests.unit.report.claimed import claim, courses, grid, judged, knot, rewrite, rounds_claim


def test_judge_returns_all_three_verdicts(factory):
    claims = claim(), claim(expect="lower"), claim(measure="sd", expect="lower"), claim(expect="higher", by=0.9)
    verdicts = [one.verdict for one in judged(grid(factory), *claims)]
    assert verdicts == ["holds", "does not hold", "holds", "does not hold"]
    alike = judged(grid(factory, skills=(1.0, 1.01)), claim())[0]
    assert alike.verdict == "undecided" and alike.low < 0 < alike.high and alike.more_seeds > 0


def test_effect_equals_paired_mean_of_recorded_measures(factory):
    jobs = grid(factory)
    found = judged(jobs, claim(measure="accuracy", dataset="MELD"))[0]
    values = [run.metric("accuracy", "MELD") for run in load_runs(jobs)]
    expected = [100 * (values[i] - values[i + 3]) for i in range(3)]
    assert found.effect == pytest.approx(np.mean(expected)) and found.unit == "points" and found.seeds == 3
    seeds_alone = stats.t.interval(0.95, 2, np.mean(expected), stats.sem(expected))
    assert found.high - found.low >= seeds_alone[1] - seeds_alone[0] - 1e-9
    assert found.basis == "seeds and test items"


def test_claim_against_before_compares_same_runs(factory):
    jobs = [knot(factory, "sinkhorn_e", seed, 2.0) for seed in range(3)]
    found = judged(jobs, claim(against="before"))[0]
    assert found.verdict == "holds" and found.runs == 3 and 0 < found.effect < 1


def test_judge_gives_one_seed_interval_without_verdict(factory):
    """The items of a seed are those of its mean effect: here of two pairs, each with its own loss."""
    skills = {"sinkhorn_a": 1.0, "sinkhorn_e": 2.0, "entropy_a": 1.0, "entropy_e": 1.5}
    jobs = [knot(factory, method, 0, skill) for method, skill in skills.items()]
    found = judged(jobs, claim(of={"method.weighting": "e"}, against={"method.weighting": "a"}))[0]
    runs = {run.run_id: run for run in load_runs(jobs)}
    bank, _ = replicates([Want(run_id, "after", "f1") for run_id in runs], runs)
    half = 1.96 * np.std(np.array([-0.5, 0.5, -0.5, 0.5]) @ list(bank.values()), ddof=1)
    assert found.verdict == "undecided" and found.basis == "test items"
    assert found.note == "no verdict before all runs of seeds 0 to 2 are finished"
    assert (found.low, found.high) == pytest.approx((found.effect - half, found.effect + half), abs=1e-4)
    assert found.more_seeds is None and found.p is None


def test_holm_correction_counts_claims_without_number_but_not_without_runs(factory):
    jobs = grid(factory)
    one = judged(jobs, claim())[0]
    others = claim(by=0.2), claim(by=0.2), claim(dataset="Nowhere")
    many = judged(jobs, *others, claim(), claim(against={"method.name": "x"}))
    assert one.adjusted == pytest.approx(one.p / (2 / 3))  # the share of the first look
    assert many[3].p == pytest.approx(one.p) and many[3].adjusted == pytest.approx(4 * one.adjusted)
    assert many[4].verdict == "no runs"


def test_judge_drops_seeds_of_missing_or_damaged_runs(factory):
    jobs = grid(factory, seeds=4)
    (jobs[0].folder / "result.json").unlink()
    (jobs[6].folder / "predictions.safetensors").write_bytes(b"damaged")
    found = judged(jobs, claim())[0]
    assert found.seeds == 2 and found.look == 0 and found.verdict == "undecided"
    assert "1 of 4 effects left out: not run yet" in found.note
    assert "predictions.safetensors: does not match its checksum" in found.note


@pytest.mark.parametrize(("diverged", "verdict"), [((0,), "undecided"), ((0, 4), "holds")], ids=["one side", "both"])
def test_one_sided_divergence_prevents_verdict(factory, diverged, verdict):
    jobs = grid(factory, seeds=4)
    for at in diverged:
        rewrite(jobs[at].folder, status="diverged", metrics={})
    found = judged(jobs, claim(), seeds=4)[0]
    assert (found.verdict, found.seeds, found.look) == (verdict, 3, 4)  # a run that diverged is there
    assert ("only one of the two runs diverged" in found.note) == (len(diverged) == 1)


@pytest.mark.parametrize("changes", of_papers([
    {"expects": "higher"}, {"expect": "greater"}, {"expect": {"above": 1}}, {"expect": "rises"}, {"trend": "seed"},
    {"expect": "rises", "trend": "seed"}, {"against": None}, {"expect": {"below": 1}, "by": 2}, {"text": " "},
    {"against": "after"}, {"expect": {"ratio": 0}}, {"measure": "rounds", "by": 1}, {"of": {"method.nam": "x"}},
    {"where": {"task.nome": "x"}}, {"measure": "acuracy"}, {"over": "clusters"}, {"measure": "plain_loss"},
    {"measure": "ari"}, {"measure": "rounds", "expect": "lower"}, {"measure": "result.seconds.total"},
    {"measure": "accuracy", "over": "weighted"}, {"measure": "gap"},
]), ids=str)  # fmt: skip
def test_claim_that_cannot_be_meant_is_refused(factory, changes):
    with refuses():
        judged(grid(factory, seeds=1), claim(**changes))


@pytest.mark.parametrize(("changes", "finished", "runs", "note"), [
    ({"dataset": "Nowhere"}, True, 4, "no data set Nowhere"),  # which may be left out
    ({"where": {"task.name": "sa"}}, True, 0, ""),  # on other runs than those asked for
    ({}, False, 4, "2 of 2 effects left out: not run yet; create them with: knot-runner experiment=x"),
])  # fmt: skip
def test_claim_without_a_number_has_no_verdict(factory, changes, finished, runs, note):
    jobs = grid(factory, seeds=2)
    for job in () if finished else jobs:
        (job.folder / "result.json").unlink()
    found = judged(jobs, claim(**changes), command="knot-runner experiment=x")[0]
    assert (found.verdict, found.runs) == ("no runs", runs) and note in found.note and bool(note) == bool(found.note)


LEVEL = {"against": None}
TREND = {"against": None, "trend": "method.temperature"}


@pytest.mark.parametrize(("changes", "need", "side"), [
    ({"expect": "higher"}, 0.0, 1), ({"expect": "lower"}, 0.0, -1), ({"expect": "higher", "by": 0.25}, 0.25, 1),
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
    ({"expect": "falls", "measure": "rounds", **TREND}, 0.0, -1), ({"expect": "rises", **TREND}, 0.0, 1),
    ({"expect": "falls", **TREND}, 0.0, -1),
])  # fmt: skip
def test_bound_of_a_claim_and_its_side(changes, need, side):
    assert threshold(Claim(**claim(**changes))) == (pytest.approx(need), side)


def of_result(factory, values, *changes):
    """Verdicts on ``values`` of Sinkhorn-E (one per seed) and 0 of Entropy-E, a number of the results."""
    jobs = grid(factory, seeds=len(values))
    for job in jobs:
        rewrite(job.folder, diverged={"took": values[job.seed] if job.method == "sinkhorn_e" else 0.0})
    return judged(jobs, *(claim(measure="result.diverged.took", **one) for one in changes), seeds=len(values))


@pytest.mark.parametrize(("changes", "verdict"), [
    ({"expect": "lower", "by": 1.5}, "holds"), ({"expect": "lower", "by": 2.5}, "does not hold"),
    ({"expect": "lower", "by": 2.0}, "undecided"),  # the interval is around the effect, the bound within it
    ({"expect": "higher", "by": 1.5}, "does not hold"), ({"expect": "lower"}, "holds"),
])  # fmt: skip
def test_lower_by_number_requires_effect_below_its_negative(factory, changes, verdict):
    (found,) = of_result(factory, (-2.01, -1.99, -2.0), changes)
    assert found.verdict == verdict and found.effect == pytest.approx(-2) and found.low < -2 < found.high < 0


@pytest.mark.parametrize("claims", [1, 4])
def test_judge_suggests_seeds_for_gap_and_open_claims(factory, claims):
    values = (1.0, 1.4, 0.7)
    found = of_result(factory, values, *[{"by": 0.5}] * claims)
    estimate = EffectEstimate(np.mean(values), 3, np.std(values, ddof=1))
    more = seeds_suggested(estimate, np.mean(values) - 0.5, 3, 3, claims)
    assert [(one.more_seeds, one.claimed) for one in found] == [(more, "> 0.5")] * claims


def test_verdict_corrects_p_value_for_looks_and_claims(factory):
    """p = .013: enough for one claim at the first look, which may spend .033, and not for one of four alike."""
    (alone,) = of_result(factory, (1.0, 1.2, 0.8), {})
    four = of_result(factory, (1.0, 1.2, 0.8), *[{}] * 4)
    (above,) = of_result(factory, (1.0, 1.4, 0.7), {})
    assert (alone.verdict, alone.p) == ("holds", pytest.approx(0.0131, abs=1e-4))
    assert {one.verdict for one in four} == {"undecided"} and {one.p for one in four} == {alone.p}
    assert above.p == pytest.approx(0.0364, abs=1e-4) and above.p < 0.05 <= above.adjusted  # above the look's share
    assert above.verdict == "undecided"


COLD_SLOW, COLD_FAST = ((None,) * 3, (10, 11, 9)), ((10, 11, 9), (None,) * 3)


@pytest.mark.parametrize(("rounds", "changes", "verdict"), [
    (COLD_FAST, {"expect": "lower"}, "holds"), (COLD_FAST, {"expect": "higher"}, "does not hold"),  # at least that fast
    (COLD_SLOW, {"expect": "lower"}, "does not hold"), (COLD_SLOW, {"expect": "higher"}, "holds"),  # at most that fast
    (COLD_FAST, {"expect": {"ratio": 8}}, "undecided"),  # may be, beyond what was run
    (COLD_SLOW, {"expect": {"ratio": 0.1}}, "undecided"),
    # 11 rounds in the mean: the number itself, no speed-up
    (COLD_FAST, {"expect": {"below": 20}, **LEVEL}, "holds"),
    (COLD_FAST, {"expect": {"below": 11}, **LEVEL}, "undecided"),
    (COLD_FAST, {"expect": {"below": 8}, **LEVEL}, "does not hold"),
])  # fmt: skip
def test_rounds_decide_only_on_their_bounded_side(federated, rounds, changes, verdict):
    found = judged(courses(federated, *rounds), rounds_claim(**changes))[0]
    assert found.verdict == verdict
    if "against" in changes:
        assert found.effect == pytest.approx((11 * 12 * 10) ** (1 / 3)) and found.unit == "rounds" and not found.ratio


def test_loss_uses_temperature_unlike_plain_loss(federated):
    jobs = [federated.made(1.0, [0.5], seed=seed) for seed in range(3)]
    level = {"of": {"method.temperature": 1.0}, "expect": {"below": 9}, **LEVEL}
    found = judged(jobs, claim(measure="loss", **level), claim(measure="plain_loss", **level))
    assert [one.effect for one in found] == [pytest.approx(2.5), pytest.approx(1.5)]


def test_verdict_uses_seeds_up_to_last_look(factory):
    jobs = grid(factory, seeds=6)
    whole = judged(jobs, claim())[0]
    five = judged([job for job in jobs if job.seed < 5], claim())[0]
    three = judged([job for job in jobs if job.seed < 3], claim())[0]
    assert (whole.look, whole.seeds, whole.share) == (6, 6, pytest.approx(2 / 9))
    assert (five.look, five.seeds, five.planned) == (
        3,
        3,
        3,
    ) and "the other finished seeds (2) count once seeds 0 to 5 are finished" in five.note
    assert (five.effect, five.p, five.verdict) == (three.effect, three.p, three.verdict)
    assert three.adjusted == pytest.approx(three.p / (2 / 3)) and whole.adjusted == pytest.approx(whole.p / (2 / 9))


def test_seeds_cannot_be_picked(factory):
    """Verdicts are on seeds 0, 1, 2, ...: neither a gap nor a run that is not made, or damaged, is passed over."""
    jobs = grid(factory, seeds=6)
    picked = judged([job for job in jobs if job.seed in (1, 3, 5)], claim())[0]
    assert (picked.verdict, picked.look, picked.p, picked.seeds) == ("undecided", 0, None, 3)
    assert "no verdict before all runs of seeds 0 to 2 are finished" in picked.note and picked.low > 0
    (jobs[4].folder / "result.json").unlink()
    assert judged(jobs, claim())[0].look == 3
    (jobs[8].folder / "predictions.safetensors").write_bytes(b"damaged")
    assert judged(jobs, claim())[0].look == 0


def test_planned_seeds_follow_preset_within_range(factory):
    jobs = grid(factory, seeds=5)
    assert [judged(jobs, claim(), seeds=n)[0].look for n in (2, 5, 6)] == [4, 5, 0]
    with refuses():
        judged(jobs, claim(), seeds=1)
    assert claim_settings({}).seeds == 3
    for wrong in (True, 2.5, "3", 1001):
        with refuses():
            claim_settings({"seeds": wrong})


def test_auc_interval_stops_at_1(factory):
    values = (0.9, 0.99)
    jobs = grid(factory, seeds=2)
    for job in jobs:
        rewrite(job.folder, diverged={"auc": values[job.seed], "area": values[job.seed]})
    asked = [claim(measure=f"result.diverged.{name}", expect={"above": 0.5}, **LEVEL) for name in ("auc", "area")]
    auc, area = judged(jobs, *asked)
    low, high = stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))
    assert (auc.low, auc.high) == (pytest.approx(low), 1.0)
    assert (area.low, area.high) == (pytest.approx(low), pytest.approx(high))
