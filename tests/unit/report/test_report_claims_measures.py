"""Claims on rounds to target, trends and ratios, also where a target is not reached."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.claims.measures import CLAIM_MEASURES
from tests.unit.report.claimed import claim, grid, judged, rewrite

COLD = {"method.temperature": 0.05, "method.lr_control": False}
WARMER = {"method.temperature": 1}


def rounds_claim(**changes):
    return claim(**{"measure": "rounds", "of": COLD, "against": WARMER, "expect": "lower", **changes})


def test_rounds_are_compared_by_their_ratio(trio):
    found = judged(trio, rounds_claim(), rounds_claim(expect={"ratio": 5}), rounds_claim(expect="higher"))
    ratios = np.log([7 / 3, 4 / 3])  # as the fixture says
    low, high = stats.t.interval(0.95, 1, ratios.mean(), stats.sem(ratios))
    assert found[0].effect == pytest.approx(math.exp(ratios.mean())) and found[0].unit == "times"
    assert (found[0].low, found[0].high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert [one.claimed for one in found] == ["> 1", "> 5", "< 1"]


def course(federated, temperature, reaches, seed, length=40):
    """T=4 is at .5 at best; this run is there in round ``reaches``, or never (None)."""
    accuracies = [0.1] * length if reaches is None else [0.1] * reaches + [0.6] * (length - reaches)
    return federated.made(temperature, accuracies, seed=seed)


def courses(federated, cold, plain):
    jobs = [federated.made(4.0, [0.1, 0.5], seed=seed) for seed in range(len(cold))]
    jobs += [course(federated, 0.05, at, seed) for seed, at in enumerate(cold)]
    return jobs + [course(federated, 1.0, at, seed) for seed, at in enumerate(plain)]


def test_a_run_that_never_reaches_the_target_counts_against_it(federated):
    slow = courses(federated, [None, None, None], [10, 11, 12])
    found = judged(slow, rounds_claim())[0]
    assert found.verdict == "does not hold" and found.effect == pytest.approx((11 * 12 * 13) ** (1 / 3) / 41)
    assert "at most that in 3 of 3" in found.note


def test_a_bound_decides_nothing_beyond_itself(federated):
    """T=1 never gets there in 40 rounds: at least 4 times as fast, so not fewer than 6 for sure."""
    jobs = courses(federated, [10, 11, 9], [None, None, None])
    twice, six = judged(jobs, rounds_claim(expect={"ratio": 2}), rounds_claim(expect={"ratio": 6}))
    assert twice.verdict == "holds" and six.verdict == "undecided"
    assert "may lie beyond the bound" in six.note and six.more_seeds is None


def test_seeds_in_which_neither_gets_there_say_nothing(federated):
    found = judged(courses(federated, [10, 11, None], [20, 23, None]), rounds_claim())[0]
    assert found.seeds == 2 and "target not reached on either side" in found.note


def test_a_target_met_in_the_first_round_took_one(federated):
    found = judged(courses(federated, [0, 0], [5, 7]), rounds_claim())[0]
    assert found.effect == pytest.approx(math.sqrt(6 * 8))
    assert found.basis == "seeds, not the test items that they share"


def test_without_the_run_that_sets_the_target(federated):
    jobs = [job for job in courses(federated, [10, 11], [20, 23]) if job.config["method"]["temperature"] != 4]
    assert "its T=4 run is not there" in judged(jobs, rounds_claim())[0].note
    assert judged(jobs, rounds_claim(), target=0.55)[0].effect == pytest.approx(math.sqrt(21 / 11 * 24 / 12))


def test_a_diverged_run_reaches_no_target(federated):
    jobs = courses(federated, [10, 10], [20, 23])
    jobs[2].config["training"] = {"rounds": 40}
    for job in jobs:
        job.config.setdefault("training", {"rounds": 40})
    rewrite(jobs[2].folder, status="diverged", metrics={})
    found = judged(jobs, rounds_claim())[0]
    assert found.seeds == 2 and found.effect == pytest.approx(math.sqrt(21 / 41 * 24 / 11))


def test_a_trend_is_the_slope_per_doubling(federated):
    temperatures = [4.0, 2.0, 1.0, 0.5]
    losses = {(t, seed): 1 + 0.3 * math.log2(t) + 0.01 * seed * t for t in temperatures for seed in (0, 1, 2)}
    jobs = []
    for (t, seed), loss in losses.items():
        jobs.append(federated.made(t, [0.5, 0.6], seed=seed))
        metrics = {k: {"ALL": loss} for k in ("loss", "tempered_loss")} | {k: {"ALL": 0.5} for k in ("accuracy", "f1")}
        rewrite(jobs[-1].folder, metrics=metrics)
    found = judged(jobs, claim(measure="plain_loss", of={"method.lr_control": False}, against=None,
                               trend="method.temperature", expect="rises"))[0]  # fmt: skip
    slopes = [np.polyfit(np.log2(temperatures), [losses[t, seed] for t in temperatures], 1)[0] for seed in (0, 1, 2)]
    assert found.effect == pytest.approx(np.mean(slopes)) and found.unit == "nats per doubling"
    assert found.verdict == "holds" and found.runs == 12


def test_any_number_of_a_result_can_be_claimed(factory):
    jobs = grid(factory, seeds=3)
    for i, job in enumerate(jobs):
        rewrite(job.folder, took={"seconds": 10.0 + i if job.method == "sinkhorn_e" else 100.0 + i})
    found = judged(jobs, claim(measure="result.took.seconds", expect={"ratio": 5}))[0]
    assert found.verdict == "holds" and found.effect == pytest.approx(
        np.prod([103 / 10, 104 / 11, 105 / 12]) ** (1 / 3)
    )


def test_there_is_no_ratio_to_nothing(factory):
    jobs = grid(factory, seeds=2)
    for job in jobs:
        rewrite(job.folder, took=0.0)
    found = judged(jobs, claim(measure="result.took", expect={"ratio": 5}))[0]
    assert found.verdict == "no runs" and "there is no ratio to 0" in found.note


@pytest.mark.parametrize(("measure", "result", "value"), [
    ("ari", {"clusters": {"ari": 0.5}}, 0.5), ("ari", {"clusters": {"ari": 0.0}}, 0.0),
    ("ari", {"clusters": {"ari": None}}, "no planted groups"), ("ari", {}, None),
    ("gap", {"kind": "distance", "value": 3.0, "exact": 4.0}, 0.25),
    ("gap", {"kind": "distance", "value": 5.0, "exact": 4.0}, 0.25),
    ("gap", {"kind": "distance", "value": 3.0, "exact": 0.0}, "the exact distance is 0"),
    ("gap", {"kind": "matrix"}, None),
])  # fmt: skip
def test_what_a_run_says_of_clusters_and_distances(measure, result, value):
    assert CLAIM_MEASURES[measure].read(SimpleNamespace(result=result)) == value
