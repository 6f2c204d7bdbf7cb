"""Federated runs through the command line: records, refusals, divergence, sweeps."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, log_loss

from knot_runner.cli.main import main
from knot_runner.engine.federated.cohort import Trained
from knot_runner.methods.messages import check_outcomes
from knot_runner.pipelines.federated import reached_target
from knot_runner.util.errors import DivergedError
from tests.runs import run
from tests.tiny import TINY_IMAGES


def test_measures_are_those_of_scikit_learn(fedavg_run):
    arrays, last = fedavg_run.tensors("predictions"), fedavg_run.rows[-1]
    p, y = arrays["test.probabilities"].numpy(), arrays["test.labels"].numpy()
    assert last["accuracy"] == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert last["f1"] == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    assert last["loss"] == pytest.approx(log_loss(y, p.astype(float), labels=range(10)), rel=1e-4)
    assert fedavg_run.result["metrics"]["accuracy"]["ALL"] == last["accuracy"]
    shown = [accuracy for accuracy in last["clients"] if accuracy is not None]
    assert last["client_accuracy"]["unweighted"] == pytest.approx(sum(shown) / len(shown))
    assert last["client_accuracy"]["weighted"] == pytest.approx(last["accuracy"])
    first, second = fedavg_run.rows[:2]  # who begins a round has what the last one ended with
    assert second["before"] == pytest.approx([first["clients"][client] for client in second["participants"]])
    assert not (fedavg_run.folder / "commit.json").exists()


@pytest.mark.parametrize(("loss", "finite"), [(1.0, False), (float("nan"), True), (float("inf"), True)])
def test_check_outcomes_names_round_and_client_of_divergence(loss, finite):
    nothing, federation = torch.empty(0), SimpleNamespace(clients=[SimpleNamespace(name=name) for name in "ab"])
    good = Trained(0, nothing, nothing, 1, 1.0, 0, 0, finite=True)
    check_outcomes(3, [good, good], federation)
    with pytest.raises(DivergedError, match=r"^diverged in round 4 at b: its loss or weights are not ") as caught:
        check_outcomes(3, [good, replace(good, client=1, loss=loss, finite=finite)], federation)
    assert caught.value.where == {"round": 4, "client": "b"}


@pytest.mark.parametrize(("rows", "ends"), [
    ([], False), ([{"accuracy": 0.5}], True), ([{"accuracy": 0.49}], False),
    ([{"accuracy": 0.6}, {"train_loss": 1.0}], False), ([{"accuracy": 0.4}, {"accuracy": 0.6}], True),
])  # fmt: skip
def test_reached_target_includes_exactly_met_target(rows, ends):
    training = SimpleNamespace(stop_at_target=True, target=0.5)
    assert reached_target(training, rows) is ends
    assert not reached_target(SimpleNamespace(stop_at_target=False, target=0.5), rows)


def test_stop_at_target_ends_run_in_recorded_round(tmp_path, capsys):
    reach = ["training.lr=0.1", "training.target=0.3", "training.rounds=30"]
    tiny = [o for o in TINY_IMAGES if o.split("=")[0] not in ("training.lr", "training.rounds")]
    record = run(tmp_path, *tiny, *reach, "training.stop_at_target=true")
    first = next(row["round"] for row in record.rows if row["accuracy"] >= 0.3)
    assert record.result["rounds_to_target"] == first == len(record.rows) < 30  # rounds trained
    assert main([*tiny, "training.lr=1e-6", "training.target=0.99", f"paths.output_dir={tmp_path / 'b'}"]) == 0
    assert "not reached" in capsys.readouterr().out


def test_lr_control_keeps_run_id_at_temperature_1(tmp_path, capsys):
    small = [*TINY_IMAGES, f"paths.output_dir={tmp_path}"]
    assert main(["check", "--quick", *small, "method.temperature=1,0.5", "method.lr_control=false,true"]) == 0
    jobs = [line for line in capsys.readouterr().out.splitlines() if line[:4].strip().isalnum() and "to do" in line]
    assert len({line.split()[0] for line in jobs}) == 3


def test_evaluated_rounds_measure_semantic_distance_of_coordinates(tmp_path):
    points = "[[0],[1],[2],[3],[4],[5],[6],[7],[8],[9]]"
    digits = "task.classes=['0','1','2','3','4','5','6','7','8','9']"
    record = run(tmp_path, *TINY_IMAGES, f"task.coordinates={points}", digits, "training.evaluate_every=2")
    assert [("accuracy" in row) for row in record.rows] == [False, True, True]  # and the last one
    assert 0 < record.rows[-1]["sd"] == record.result["metrics"]["sd"]["ALL"] < 9
