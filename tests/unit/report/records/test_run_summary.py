"""The summary of a run in 80 columns."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import pytest
from rich.console import Console

from knot_runner.report.records.run_summary import summary_table
from knot_runner.report.records.run_view import cost_lines
from knot_runner.results import kind_problem
from knot_runner.results.base import total_costs
from tests.unit.report.conftest import CORESET, COSTS, FLEET, KNN, shown

HOSTILE = "\x1b[31mred\x1b[0m [red]z[/red]"


def test_summary_of_a_run(factory: Any) -> None:
    text = shown(summary_table(factory.result(factory.job(), notes=["IEMOCAP left out: no file"])))
    assert max(map(len, text.splitlines())) <= 80
    assert "erc · Sinkhorn-E · seed 0" in text
    assert "0.350 -> 0.400" in text and "global" in text and "ALL" in text and "the weights of epoch 7" in text
    assert "IEMOCAP left out: no file" in text


def test_summary_says_when_distillation_changed_nothing_or_diverged(factory: Any) -> None:
    kept = factory.result(factory.job(), selected_epoch=0)
    assert "epoch 0, the undistilled global model" in shown(summary_table(kept))
    assert "diverged" in shown(summary_table(factory.result(factory.job(), status="diverged", metrics={})))


def test_summary_escapes_names(factory: Any) -> None:
    job = dataclasses.replace(factory.job(), method=HOSTILE)
    text = shown(summary_table(factory.result(job, names=[HOSTILE, "Food"], notes=[HOSTILE])), width=200)
    assert "\x1b" not in text and "[red]z[/red]" in text


def of_rounds(federated: Any, **changes: Any) -> str:
    job = federated.job(0.05)
    return shown(summary_table(federated.result(job, federated.rows(job, [0.1, 0.42, 0.3]), **changes)), width=60)


def test_summary_of_a_federated_run(federated: Any) -> None:
    text = of_rounds(federated, notes=["a note"])
    assert max(map(len, text.splitlines())) <= 60
    values = {line.rsplit(" ", 2)[0].strip(): line.split()[-1] for line in text.splitlines() if line.strip()}
    assert values["accuracy"] == "0.300" and values["macro F1"] == "0.270"
    assert values["loss"] == "1.700" and values["loss of logits / T"] == "2.700"
    assert values["accuracy over clients, each alike"] == "0.300"
    assert "best accuracy 0.420 after 2 rounds" in text
    assert "engine lean" in text and "574,142 parameters" in text and "a note" in text
    assert "training.target=0.8" in text and "semantic distance" not in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": 0.74}, "target 0.740 not reached in 3 rounds"),
        ({"target": 0.4, "rounds_to_target": 2}, "target 0.400 reached after 2 rounds"),
        ({"target": 0.05, "rounds_to_target": 1}, "target 0.050 reached after 1 round"),
    ],
)
def test_summary_says_when_the_target_was_reached(federated: Any, changes: dict[str, Any], said: str) -> None:
    assert said in of_rounds(federated, **changes)


def test_summary_of_a_diverged_federated_run(federated: Any) -> None:
    text = of_rounds(federated, status="diverged", metrics={}, notes=["diverged in round 1 at client 3"])
    assert "seed 0: diverged, so there are no" in text and "in round 1 at client 3" in text


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


def test_the_summary_says_when_the_target_was_reached(federated):
    facts = {**FLEET, "clock": 3000.0}
    text = of_rounds(federated, target=0.4, rounds_to_target=2, fleet=facts, time_to_target=1234.4)
    assert "target 0.400 reached after 2 rounds" in text
    assert "virtual clock: target after 1,234 s of 3,000 s; 90 updates" in " ".join(text.split())
    assert "virtual" not in of_rounds(federated)


@pytest.mark.parametrize("record", [CORESET, KNN])
def test_sound_records_are_believed_and_shown(record: dict[str, Any]) -> None:
    assert kind_problem(record) == ""
    console = Console(width=100, file=io.StringIO())
    console.print(summary_table(record))
    said = console.file.getvalue()
    assert ("2 of 3" in said) if record["kind"] == "coreset" else ("0.800" in said and "0.750" in said)
