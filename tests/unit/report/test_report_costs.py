"""Bytes and FLOPs in records, summaries and claims."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from knot_runner.report.records.run_summary import summary_table
from knot_runner.report.records.run_view import cost_lines
from knot_runner.results import kind_problem
from knot_runner.results.base import total_costs
from tests.unit.report.claimed import claim, judged, rewrite
from tests.unit.report.sealing import put
from tests.unit.report.test_report_claims_measures import COLD, WARMER, course
from tests.unit.report.test_report_summary import shown

COSTS = {"bytes_down": 30, "bytes_up": 12, "client_flops": 5_000, "server_flops": None}


def spend(job: Any, *sent: int) -> Any:
    """Rewrite the rows of ``job``: bytes of each round, both ways; the last goes on."""
    path = job.folder / "rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for i, row in enumerate(rows):
        total = sent[min(i, len(sent) - 1)]
        row |= COSTS | {"bytes_down": total // 4, "bytes_up": total - total // 4}
    put(path, "".join(json.dumps(row) + "\n" for row in rows))
    return job


# ------------------------------------------------------------------------------------------------------------- records


def test_totals_are_sums_of_rows_and_to_the_target_of_its_rounds():
    rows = [COSTS | {"server_flops": 7, "bytes_up": own} for own in (12, 100, 1000)]
    found = total_costs(rows, 2, "models", example_flops=9)
    assert (found["bytes_up"], found["bytes_down"], found["bytes"]) == (1112, 90, 1202)
    assert found["bytes_to_target"] == 12 + 100 + 60 and found["bytes_per_round"] == pytest.approx(1202 / 3)
    assert (found["client_flops"], found["server_flops"], found["example_flops"]) == (15_000, 21, 9)
    assert found["sent"] == "models" and "Kaplan" in found["formula"]
    assert total_costs(rows, None, "models")["bytes_to_target"] is None
    assert total_costs([COSTS], None, "models")["server_flops"] is None


@pytest.mark.parametrize(("broken", "said"), [
    ({"bytes": 43}, "costs.bytes: are not"), ({"bytes_to_target": 43}, "costs.bytes_to_target"),
    ({"bytes_up": -1}, "bytes_up"),
])  # fmt: skip
def test_a_result_whose_costs_cannot_be_is_refused(federated, broken, said):
    job = federated.job()
    costs = total_costs([COSTS], 1, "models")
    result = federated.result(job, federated.rows(job, [0.1]))
    assert not kind_problem(result) and not kind_problem(result | {"costs": costs})
    assert said in kind_problem(result | {"costs": costs | broken})


# ------------------------------------------------------------------------------------------------------------- summary


def test_summary_lines(federated):
    job = federated.job()
    rows = federated.rows(job, [0.1])
    costs = total_costs([COSTS | {"bytes_up": 12_400_000, "client_flops": 3_100_000_000_000}], None, "models")
    text = shown(summary_table(federated.result(job, rows, costs=costs)), width=90)
    assert "12.4 MB up, 30 B down; 3.1 TFLOP at clients; FLOPs at server not counted" in text
    assert " up, " not in shown(summary_table(federated.result(job, rows)), width=90)
    both = total_costs([COSTS | {"server_flops": 2_000}], 1, "models")
    assert cost_lines({"costs": both}) == [
        "12 B up, 30 B down; 5 kFLOP at clients, 2 kFLOP at server", "42 B both ways until the target was reached"
    ]  # fmt: skip
    idle = total_costs([COSTS | {"server_flops": 0}], None, "models")
    assert cost_lines({"costs": idle}) == ["12 B up, 30 B down; 5 kFLOP at clients"]
    unknown = total_costs([COSTS | {"client_flops": None}], None, "models")
    assert cost_lines({"costs": unknown}) == ["12 B up, 30 B down; FLOPs at clients and server not counted"]


# -------------------------------------------------------------------------------------------------------------- claims


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
