"""Results of earlier versions count rounds from 0, and do not say so: they are read as rounds trained."""

from __future__ import annotations

import json
from typing import Any

import pytest

from knot_runner.config.strict import digest
from knot_runner.pipelines.rounds.summary import summarise
from knot_runner.report.records.run_summary import summary_table
from knot_runner.report.records.schema import rounds_trained
from knot_runner.report.run_folders import load_runs
from tests.report.test_report_summary import shown


def test_a_result_says_that_it_counts_rounds_trained_and_is_read_as_it_is(federated: Any) -> None:
    rows = federated.rows(federated.job(1.0), [0.1, 0.4, 0.4])
    made = summarise(rows, 0.3)
    assert (made["best"]["round"], made["rounds_to_target"]) == (2, 2)
    assert rounds_trained({"kind": "federated", **made}) == {"kind": "federated", **made}


@pytest.mark.parametrize(("index", "rounds"), [(0, 1), (2, 3), (None, None)])
def test_a_result_of_an_earlier_version_is_read_as_rounds_trained(federated: Any, index: Any, rounds: Any) -> None:
    job = federated.job(1.0)
    rows = federated.rows(job, [0.1, 0.2, 0.4])
    federated.write(job, [0.1, 0.2, 0.4])
    old = federated.result(job, rows, target=0.4, rounds_to_target=index) | {"best": {"accuracy": 0.4, "round": 2}}
    del old["rounds_count"]
    old["digest"] = digest(old, 64)
    (job.folder / "result.json").write_text(json.dumps(old))
    (run,) = load_runs([job])
    assert (run.status, run.problem) == ("done", "")
    assert (run.result["best"], run.result["rounds_to_target"]) == ({"accuracy": 0.4, "round": 3}, rounds)
    assert rounds_trained(run.result) == run.result  # counted once
    text = shown(summary_table(old))
    assert "best accuracy 0.400 after 3 rounds" in text
    assert f"reached after {rounds} round" in text or f"not reached in {old['rounds']} rounds" in text
