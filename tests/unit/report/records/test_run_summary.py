"""The summary of a run in 80 columns."""

import pytest

from knot_runner.report.records.run_summary import cost_lines, summary_table
from knot_runner.results import total_costs
from tests.contents import result_with
from tests.of_papers import of_papers
from tests.unit.report.made_runs import CORESET, COSTS, FLEET, KNN, shown

HOSTILE = "\x1b[31mred\x1b[0m [red]z[/red]"


@pytest.mark.parametrize(("changes", "parts"), [
    ({"notes": ["IEMOCAP left out: no file"]}, ["erc · ", " · seed 0", "0.350 -> 0.400", "global", "ALL",
                                                "the weights of epoch 7", "IEMOCAP left out: no file"]),
    ({"selected_epoch": 0}, ["epoch 0, the undistilled global model"]),
    ({"status": "diverged", "metrics": {}}, ["diverged"]),
    ({"method": HOSTILE, "notes": [HOSTILE]}, ["[red]z[/red]"]),
])  # fmt: skip
def test_summary_of_a_distillation(factory, changes, parts):
    text = shown(summary_table(result_with(factory.result(factory.job()) | changes)))
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert all(part in text for part in parts)


@pytest.fixture
def of_rounds(federated):
    """Returns a function: changes of a federated result -> what its summary shows."""
    job = federated.job(0.05)
    result = federated.result(job, federated.rows(job, [0.1, 0.42, 0.3]))
    return lambda **changes: shown(summary_table(result_with(result | changes)), width=60)


def test_summary_of_a_federated_run(of_rounds):
    text = of_rounds(notes=["a note"])
    assert max(map(len, text.splitlines())) <= 60
    values = {line.rsplit(" ", 2)[0].strip(): line.split()[-1] for line in text.splitlines() if line.strip()}
    assert values["accuracy"] == "0.300" and values["macro F1"] == "0.270"
    assert values["loss"] == "1.700" and values["loss of logits / T"] == "2.700"
    assert values["accuracy over clients, unweighted"] == "0.300"
    assert "best accuracy 0.420 after 2 rounds" in text
    assert "in 30 s" in " ".join(text.split())  # all rounds, also those before a restart
    assert "engine lean" in text and "574,142 parameters" in text and "a note" in text
    assert "training.target=0.8" in text and "semantic distance" not in text
    assert " up, " not in text and "virtual" not in text


FLEET_TARGET = {"fleet": FLEET | {"clock": 3000.0}, "time_to_target": 1234.4}


@pytest.mark.parametrize(("changes", "part"), [
    ({"target": 0.74}, "target 0.740 not reached in 3 rounds"),
    ({"target": 0.4, "rounds_to_target": 2}, "target 0.400 reached after 2 rounds"),
    ({"target": 0.05, "rounds_to_target": 1}, "target 0.050 reached after 1 round"),
    ({"target": 0.4, "rounds_to_target": 2, **FLEET_TARGET},
     "virtual clock: target after 1,234 s of 3,000 s; 90 updates"),
    ({"status": "diverged", "metrics": {}}, "seed 0: diverged, so there are no"),
    ({"costs": total_costs([COSTS | {"bytes_up": 12_400_000, "client_flops": 3_100_000_000_000}], None, "models")},
     "12.4 MB up, 30 B down; 3.1 TFLOP at clients; FLOPs at server not counted"),
])  # fmt: skip
def test_summary_table_shows_federated_target_and_costs(of_rounds, changes, part):
    assert part in " ".join(of_rounds(**changes).split())


@pytest.mark.parametrize(("row", "reached", "lines"), [
    ({"server_flops": 2_000}, 1, ["12 B up, 30 B down; 5 kFLOP at clients, 2 kFLOP at server",
                                  "42 B up and down until the target was reached"]),
    ({"server_flops": 0}, None, ["12 B up, 30 B down; 5 kFLOP at clients"]),
    ({"client_flops": None}, None, ["12 B up, 30 B down; FLOPs at clients and server not counted"]),
])  # fmt: skip
def test_cost_lines(row, reached, lines):
    assert list(cost_lines(result_with({"costs": total_costs([COSTS | row], reached, "models")}))) == lines


@pytest.mark.parametrize(("result", "parts"), of_papers([(CORESET, ["2 of 3"]), (KNN, ["0.800", "0.700"])]))
def test_summary_of_a_coreset(result, parts):
    assert all(part in shown(summary_table(result_with(result)), width=100) for part in parts)
