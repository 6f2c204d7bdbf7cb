"""Claims on rounds, bytes and time to a target, on trends, ratios, costs and any number of a result."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.claims.measures import CLAIM_MEASURES, ClaimMeasure, Reading, read_measure
from knot_runner.report.claims.spec import Claim
from knot_runner.results import total_costs
from knot_runner.util.errors import UserError
from tests.contents import read_content
from tests.of_papers import of_papers
from tests.unit.report.claimed import COLD, WARMER, claim, courses, grid, judged, rewrite, rounds_claim
from tests.unit.report.made_runs import COSTS, seal

NEVER = (None, None, None)
SPENT, SECONDS = ((10_000_000,), (2_000_000,)), ((10.0, 12.0, 11.0), (30.0, 33.0, 36.0))
SLOWER, FASTER, T4 = "does not hold", "holds", "best_of_T4"


@pytest.mark.paper("chill")
def test_rounds_are_compared_by_their_ratio(trio):
    found = judged(trio, rounds_claim(), rounds_claim(expect={"ratio": 5}), rounds_claim(expect="higher"), target=T4)
    ratios = np.log([7 / 3, 4 / 3])  # as the fixture says
    low, high = stats.t.interval(0.95, 1, ratios.mean(), stats.sem(ratios))
    assert found[0].effect == pytest.approx(math.exp(ratios.mean())) and found[0].unit == "times"
    assert (found[0].low, found[0].high) == (pytest.approx(math.exp(low)), pytest.approx(math.exp(high)))
    assert [one.claimed for one in found] == ["> 1", "> 5", "< 1"]


@pytest.mark.parametrize(("measure", "cold", "plain", "more", "ratios", "verdict", "note"), [
    # T=.05 needs 41 rounds at least
    ("rounds", NEVER, (10, 11, 12), {}, [11 / 41, 12 / 41, 13 / 41], SLOWER, "at most this value in 3 of 3"),
    ("rounds", (10, 11, None), (20, 23, None), {}, [21 / 11, 24 / 12], None, "on either side of"),
    ("rounds", (0, 0), (5, 7), {}, [6, 8], None, ""),  # a target that is met in the first round takes one
    # fewer rounds of 10 MB are not fewer bytes than more rounds of 2 MB
    ("rounds", (10, 11, 9), (20, 22, 18), {"spent": SPENT}, [21 / 11, 23 / 12, 19 / 10], FASTER, ""),
    ("bytes", (10, 11, 9), (20, 22, 18), {"spent": SPENT}, [42 / 110, 46 / 120, 38 / 100], SLOWER, ""),
    # a target that is not reached takes one more round like the cheapest
    ("bytes", (None,), (1,), {"length": 4, "spent": ((5, 3, 7), (1,))}, [2 / (5 + 3 + 7 + 7 + 3)], None, "in 1 of 1"),
    ("bytes", (2,), (0,), {"spent": ((5, 3, 7, 1), (30,))}, [30 / 15], None, ""),  # of all rounds until then
    # three rounds of 10, 12 and 11 s are sooner than two of 30, 33 and 36
    ("rounds", (2, 2, 2), (1, 1, 1), {"length": 5, "seconds": SECONDS}, [2 / 3, 2 / 3, 2 / 3], None, ""),
    ("time", (2, 2, 2), (1, 1, 1), {"length": 5, "seconds": SECONDS}, [60 / 30, 66 / 36, 72 / 33], FASTER, ""),
    ("time", (2, 2, 2), NEVER, {"length": 5, "seconds": SECONDS}, [150 / 30, 165 / 36, 180 / 33], FASTER,
     "counts as if it reached the target at the end of the run; the true effect is at least this value in 3 of 3"),
])  # fmt: skip
def test_effect_is_the_geometric_mean_of_ratios(federated, measure, cold, plain, more, ratios, verdict, note):
    found = judged(courses(federated, cold, plain, **more), rounds_claim(measure=measure))[0]
    assert found.effect == pytest.approx(np.prod(ratios) ** (1 / len(ratios))) and found.unit == "times"
    assert found.seeds == len(ratios) and note in found.note and verdict in (None, found.verdict)
    assert found.basis == "seeds, not the test items that they share"


def test_unreached_target_decides_only_within_its_bound(federated):
    """T=1 never gets there in 40 rounds: at least 4 times as fast, so not fewer than 6 for sure."""
    jobs = courses(federated, [10, 11, 9], NEVER)
    twice, six = judged(jobs, rounds_claim(expect={"ratio": 2}), rounds_claim(expect={"ratio": 6}))
    assert twice.verdict == "holds" and six.verdict == "undecided"
    assert "may exceed the bound" in six.note and six.more_seeds is None


@pytest.mark.paper("chill")
def test_target_requires_reference_run_or_number(federated):
    jobs = [job for job in courses(federated, [10, 11], [20, 23]) if job.config["method"]["temperature"] != 4]
    assert "its T=4 run is missing" in judged(jobs, rounds_claim(), target=T4)[0].note
    assert judged(jobs, rounds_claim(), target=0.55)[0].effect == pytest.approx(math.sqrt(21 / 11 * 24 / 12))


@pytest.mark.paper("chill")
def test_target_is_that_of_the_chilled_run_and_not_of_its_control(federated):
    jobs = courses(federated, [10, 11], [20, 23])
    better = [federated.made(4.0, [0.9] * 40, seed=seed, control=True, label="control") for seed in (0, 1)]
    first, second = (judged(runs, rounds_claim(), target=T4)[0].effect for runs in (jobs, [*jobs, *better]))
    assert first == second


def test_diverged_run_misses_target_and_yields_no_bytes(federated):
    jobs = courses(federated, [10, 10], [20, 23], spent=SPENT)
    for job in jobs:
        job.config["training"] = {"rounds": 40}
    rewrite(jobs[2].folder, status="diverged", metrics={})
    rounds, sent = judged(jobs, rounds_claim(), rounds_claim(measure="bytes"))
    assert rounds.seeds == 2 and rounds.effect == pytest.approx(math.sqrt(21 / 41 * 24 / 11))
    assert sent.seeds == 1 and "1 of 2 effects left out: diverged" in sent.note


def test_diverged_fleet_run_has_no_time(federated):
    jobs = courses(federated, (2, 2), (1, 1), length=5, seconds=SECONDS)
    for job in jobs:
        job.config["training"] = {"rounds": 5}
    result = read_content(jobs[2].folder) | {"status": "diverged", "metrics": {}}
    del result["fleet"]
    seal(jobs[2].folder, result)
    found = judged(jobs, rounds_claim(measure="time"))[0]
    assert found.seeds == 1 and "1 of 2 effects left out: diverged" in found.note


def test_level_of_bytes_is_in_megabytes(federated):
    jobs = courses(federated, (10, 10, 10), (20, 20, 20), spent=SPENT)
    found = judged(jobs, rounds_claim(measure="bytes", against=None, expect={"below": 120}))[0]
    assert found.effect == pytest.approx(11 * 10) and found.unit == "MB" and found.claimed == "< 120"


def test_trend_is_the_slope_per_doubling(federated):
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


def test_claims_measure_any_number_in_result(factory, federated):
    jobs = grid(factory, seeds=3)
    for i, job in enumerate(jobs):
        rewrite(job.folder, diverged={"in": 10.0 + i if job.method == "sinkhorn_e" else 100.0 + i, "nothing": 0.0})
    found, none = judged(
        jobs, *(claim(measure=f"result.{key}", expect={"ratio": 5}) for key in ("diverged.in", "diverged.nothing"))
    )
    assert found.verdict == "holds"
    assert found.effect == pytest.approx(np.prod([103 / 10, 104 / 11, 105 / 12]) ** (1 / 3))
    assert none.verdict == "no runs" and "the ratio is undefined, since a value is 0" in none.note
    jobs = []
    for temperature, flops in ((0.05, 100), (1.0, 300)):
        costs = total_costs([COSTS | {"client_flops": flops}], None, "models")
        jobs.append(federated.write(federated.job(temperature), [0.1], costs=costs))
    flops = claim(measure="result.costs.client_flops", of=COLD, against=WARMER, expect="lower")
    assert judged(jobs, flops)[0].effect == -200


@pytest.mark.parametrize(("measure", "result", "value"), of_papers([
    ("ari", {"clusters": SimpleNamespace(ari=0.5)}, 0.5), ("ari", {"clusters": SimpleNamespace(ari=0.0)}, 0.0),
    ("ari", {"clusters": SimpleNamespace(ari=None)}, "no planted groups"), ("ari", {}, None),
    ("gap", {"kind": "matrix"}, None),
]))  # fmt: skip
def test_claim_measures_read_clusters_and_distances(measure, result, value):
    found = SimpleNamespace(**{"kind": "federated", **result})
    assert CLAIM_MEASURES[measure].read(SimpleNamespace(result=found)) == value


def test_read_measure_marks_damaged_run_as_lost(monkeypatch):
    def read(run):
        raise UserError("a file is damaged")

    monkeypatch.setitem(CLAIM_MEASURES.data, "own", ClaimMeasure("points", 2, read=read))
    run = SimpleNamespace(job=SimpleNamespace(run_id="w", config={}), status="done", result={}, problem="")
    found = read_measure(Claim("x", "here", "own", {"above": 0.1}), run, "after", None)
    assert found == Reading(None, "a file is damaged", lost=True)


@pytest.mark.parametrize(("clusters", "value"), [({}, 0.25), ({"clusters": 0.5}, 0.5)])
def test_accuracy_over_clusters_falls_back_to_weighted(clusters, value):
    over = Claim("x", "here", "accuracy", {"above": 0.1}, over="clusters")
    metrics = {"client_accuracy": {"weighted": 0.25, "unweighted": 0.75} | clusters}
    run = SimpleNamespace(
        job=SimpleNamespace(run_id="w", config={}), status="done", result=SimpleNamespace(metrics=metrics), problem=""
    )
    assert read_measure(over, run, "after", None).value == value
