"""What records say of a fleet: claims on time to a target, the summary, and rows and results that cannot be."""

import json
import math

import pytest

from knot_runner.metrics import time_to_target
from knot_runner.records import read_result
from knot_runner.results import kind_problem
from tests.unit.report.claimed import judged
from tests.unit.report.sealing import put
from tests.unit.report.test_report_claims_measures import rounds_claim
from tests.unit.report.test_report_summary import of_rounds

FACTS = {"clock": 900.0, "arrived": 90, "dropped": 0, "late": 0, "partial": 0, "empty": 0, "staleness": 0.0}
OF_ROW = {"dropped": 1, "late": 2, "partial": 0, "staleness": 0.5}


def clocked(federated, temperature, accuracies, seconds, seed=0, every=1):
    """A finished run of a fleet whose rounds take ``seconds`` each."""
    job = federated.job(temperature, seed=seed)
    clock = seconds * len(accuracies)
    federated.write(job, accuracies, every, fleet={**FACTS, "clock": clock})
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


def test_the_summary_says_when_the_target_was_reached(federated):
    facts = {**FACTS, "clock": 3000.0}
    text = of_rounds(federated, target=0.4, rounds_to_target=2, fleet=facts, time_to_target=1234.4)
    assert "target 0.400 reached after 2 rounds" in text
    assert "virtual clock: target after 1,234 s of 3,000 s; 90 updates" in " ".join(text.split())
    assert "virtual" not in of_rounds(federated)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"fleet": {**FACTS, "clock": -1.0}}, "fleet.clock"), ({"fleet": {**FACTS, "late": 0.5}}, "fleet.late"),
    ({"fleet": {**FACTS, "lost": 1}}, "fleet.lost"), ({"fleet": FACTS, "time_to_target": 901.0}, "time_to_target"),
    ({"time_to_target": 10.0}, "time_to_target"),
])  # fmt: skip
def test_an_unsound_result_is_refused(federated, changes, reason):
    assert reason in kind_problem(read_result(federated.write(federated.job(), [0.1, 0.2], **changes).folder))
