"""Claims on rounds, bytes and time to a target, on trends, ratios, costs and any number of a result."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from knot_runner.metrics import time_to_target
from knot_runner.report.claims.measures import CLAIM_MEASURES, read_measure
from knot_runner.report.claims.spec import Claim
from knot_runner.results.base import total_costs
from tests.unit.report.claimed import claim, grid, judged, rewrite
from tests.unit.report.conftest import COSTS, FLEET, put

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


def spend(job: Any, *sent: int) -> Any:
    """Rewrite the rows of ``job``: bytes of each round, both ways; the last goes on."""
    path = job.folder / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        total = sent[min(i, len(sent) - 1)]
        row |= COSTS | {"bytes_down": total // 4, "bytes_up": total - total // 4}
    put(path, "".join(json.dumps(row) + "\n" for row in rows))
    return job


def bytes_claim(**changes):
    return claim(**{"measure": "bytes", "of": COLD, "against": WARMER, "expect": "lower", **changes})


def spent(federated, cold, plain, each=(10_000_000, 2_000_000)):
    """Runs at T=.05 and T=1 that reach the target in these rounds, with so many bytes a round; T=4 sets the target."""
    jobs = [federated.made(4.0, [0.1, 0.5], seed=seed) for seed in range(len(cold))]
    jobs += [spend(course(federated, 0.05, at, seed), each[0]) for seed, at in enumerate(cold)]
    return jobs + [spend(course(federated, 1.0, at, seed), each[1]) for seed, at in enumerate(plain)]


def test_fewer_rounds_are_not_fewer_bytes(federated):
    """11 rounds of 10 MB against 21 of 2."""
    jobs = spent(federated, (10, 11, 9), (20, 22, 18))
    by_rounds, by_bytes, ratio = judged(
        jobs, bytes_claim(measure="rounds"), bytes_claim(), bytes_claim(expect={"ratio": 2}, of=WARMER, against=COLD)
    )
    assert by_rounds.verdict == "holds" and by_bytes.verdict == "does not hold" and ratio.verdict == "holds"
    logs = [math.log(2 * b / (10 * a)) for a, b in zip((11, 12, 10), (21, 23, 19), strict=True)]
    assert by_bytes.effect == pytest.approx(math.exp(sum(logs) / 3)) and by_bytes.unit == "times"


def test_levels_are_in_megabytes(federated):
    jobs = spent(federated, (10, 10, 10), (20, 20, 20))
    found = judged(jobs, bytes_claim(against=None, expect={"below": 120}))[0]
    assert found.effect == pytest.approx(11 * 10) and found.unit == "MB" and found.claimed == "< 120"


def test_a_target_that_is_not_reached_takes_one_more_round_like_the_cheapest(federated):
    jobs = [federated.made(4.0, [0.1, 0.5])]
    jobs += [spend(course(federated, 0.05, None, 0, length=4), 5_000_000, 3_000_000, 7_000_000)]
    jobs += [spend(course(federated, 1.0, 1, 0), 1_000_000)]
    found = judged(jobs, bytes_claim())[0]
    assert found.effect == pytest.approx(2 / (5 + 3 + 7 + 7 + 3)) and "at most that in 1 of 1" in found.note


def test_bytes_of_all_rounds_until_then_count(federated):
    jobs = [federated.made(4.0, [0.1, 0.5])]
    jobs += [spend(course(federated, 0.05, 2, 0), 5_000_000, 3_000_000, 7_000_000, 1_000_000)]
    jobs += [spend(course(federated, 1.0, 0, 0), 30_000_000)]
    assert judged(jobs, bytes_claim())[0].effect == pytest.approx(30 / 15)


def test_diverged_runs_are_left_out_and_said(federated):
    diverged = spent(federated, (10, 11, 9), (20, 22, 18))
    rewrite(diverged[3].folder, status="diverged", metrics={})
    found = judged(diverged, bytes_claim())[0]
    assert found.seeds == 2 and "1 of 3 effects left out: diverged" in found.note


def test_costs_of_results_can_be_claimed(federated):
    jobs = []
    for seed in range(2):
        for temperature, flops in ((0.05, 100), (1.0, 300 + seed)):
            job = federated.made(temperature, [0.1], seed=seed)
            rewrite(job.folder, costs=total_costs([COSTS | {"client_flops": flops}], None, "models"))
            jobs.append(job)
    found = judged(jobs, bytes_claim(measure="result.costs.client_flops"))[0]
    assert found.effect == pytest.approx(-200.5)


OF_ROW = {"dropped": 1, "late": 2, "partial": 0, "staleness": 0.5}


def clocked(federated, temperature, accuracies, seconds, seed=0, every=1):
    """A finished run of a fleet whose rounds take ``seconds`` each."""
    job = federated.job(temperature, seed=seed)
    clock = seconds * len(accuracies)
    federated.write(job, accuracies, every, fleet={**FLEET, "clock": clock})
    rows = [json.loads(line) for line in (job.folder / "rounds.jsonl").read_text().splitlines()]
    rows = [{**row, **OF_ROW, "clock": seconds * row["round"]} for row in rows]
    put(job.folder / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return job


def fleets(federated, cold, plain, reaches=(2, 1)):
    """Runs that are at .6 from the rounds ``reaches`` on (None: never), at so many seconds a round."""
    jobs = []
    for seed, pair in enumerate(zip(cold, plain, strict=True)):
        for temperature, seconds, first in zip((0.05, 1.0), pair, reaches, strict=True):
            accuracies = [0.1] * 5 if first is None else [0.1] * first + [0.6] * (5 - first)
            jobs.append(clocked(federated, temperature, accuracies, seconds, seed))
    return jobs


@pytest.mark.parametrize(("target", "moment"), [(0.5, 2.5), (0.6, 2.5), (0.61, None), (0.1, 1.5), (None, None)])
def test_the_first_moment_at_a_target(target, moment):
    assert time_to_target([(1.5, 0.1), (2.5, 0.6), (9.0, 0.6)], target) == moment


def time_claim(**changes):
    return rounds_claim(**{"measure": "time", **changes})


def test_times_are_compared_by_their_ratio(federated):
    """In three rounds of 10, 12 and 11 s against two of 30, 33 and 36."""
    jobs = fleets(federated, (10.0, 12.0, 11.0), (30.0, 33.0, 36.0))
    found = judged(jobs, time_claim(), time_claim(expect="higher"), rounds_claim(), target=0.5)
    wanted = math.exp(sum(math.log(p * 2 / (c * 3)) for c, p in ((10, 30), (12, 33), (11, 36))) / 3)
    assert found[0].effect == pytest.approx(wanted) and found[0].unit == "times"
    assert [one.verdict for one in found[:2]] == ["holds", "does not hold"]
    assert found[2].effect == pytest.approx(2 / 3)  # sooner, though in more rounds
    assert found[0].basis == "seeds, not the test items that they share"


def test_a_run_that_never_gets_there_counts_with_all_of_its_time(federated):
    jobs = fleets(federated, (10.0, 12.0, 11.0), (30.0, 33.0, 36.0), reaches=(2, None))
    (found,) = judged(jobs, time_claim(), target=0.5)
    wanted = math.exp(sum(math.log(p * 5 / (c * 3)) for c, p in ((10, 30), (12, 33), (11, 36))) / 3)
    assert found.effect == pytest.approx(wanted) and found.verdict == "holds"
    assert "counts as if it were at the end of the run; the true effect is at least that in 3 of 3" in found.note


def run_of(name, status="done", **result):
    return SimpleNamespace(job=SimpleNamespace(run_id=name, config={}), status=status, result=result, problem="")


def test_clusters_alike_are_clients_by_their_examples_where_there_are_no_clusters():
    over = Claim("x", "here", "accuracy", {"above": 0.1}, over="clusters")
    run = run_of("w", metrics={"client_accuracy": {"weighted": 0.25, "unweighted": 0.75}})
    assert read_measure(over, run, "after", None).value == 0.25
    run.result["metrics"]["client_accuracy"]["clusters"] = 0.5
    assert read_measure(over, run, "after", None).value == 0.5
