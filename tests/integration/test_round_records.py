"""Rows of ``rounds.jsonl`` count from 1, name the temperatures, and are null for rounds without participants."""

import json

import pytest

from knot_runner.cli.main import main
from knot_runner.metrics import LOG_VALUES, METRICS
from knot_runner.pipelines.scores import summarize
from tests.runs import run
from tests.tiny import TINY_IMAGES, replaced


def test_summarize_returns_round_numbers_of_rows():
    blank = {"loss": 1.0, "client_accuracy": {}}
    rows = [{"round": number, "accuracy": value, **blank} for number, value in enumerate((0.1, 0.4, 0.4), 1)]
    made = summarize(rows, 0.3)
    assert (made["best"]["round"], made["rounds_to_target"]) == (2, 2)


def test_rows_count_from_1(fedavg_run, knot_run):
    assert [row["round"] for row in knot_run.rows] == list(range(1, len(knot_run.rows) + 1))
    best = max(fedavg_run.rows, key=lambda row: row["accuracy"])
    assert fedavg_run.result["best"] == {"accuracy": best["accuracy"], "round": best["round"]}


def test_divergence_round_of_clusters_counts_from_1(tmp_path, capsys):
    words = replaced(TINY_IMAGES, "training.lr=1e30", "method=clustered_fedavg", "training.small_clients=allow")
    assert main([*words, f"paths.output_dir={tmp_path}"]) == 1
    (path,) = tmp_path.glob("*/*/*/result.json")
    result = json.loads(path.read_text())
    assert not list((tmp_path / "artifacts").glob("rounds/*/info.json"))
    assert result["status"] == "diverged" and result["diverged"]["round"] == 1
    assert "diverged in round 1 at client" in capsys.readouterr().err


STRAGGLERS = ["+method.stragglers.share=1.0", "+method.stragglers.temperature=0.1"]
CONTROLLED = ["method.temperature=0.5", "method.lr_control=true"]
SCHEDULE = [f"+method.schedule.{word}" for word in ("end=1", "rounds=2", "shape=linear")]


@pytest.mark.parametrize(("method", "words", "train", "test"), [
    ("fedavg", CONTROLLED, [1.0] * 3, [1.0] * 3),
    ("finetune", [*CONTROLLED, "method.hard_temperature=0.2"], [0.5] * 3, [1.0] * 3),
    ("clustered_fedavg", ["method.temperature=0.5", *STRAGGLERS], [0.1] * 3, [0.5] * 3),
    ("fedavg", ["method.temperature=4", *SCHEDULE], [4.0, 2.5, 1.0], [4.0, 2.5, 1.0]),
])  # fmt: skip
def test_rows_name_the_temperatures_that_were_used(tmp_path, method, words, train, test):
    rows = run(tmp_path, *TINY_IMAGES, "training.small_clients=allow", f"method={method}", *words).rows
    assert [row["train_temperature"] for row in rows] == pytest.approx(train)
    assert [row["test_temperature"] for row in rows] == pytest.approx(test)
    assert all("temperature" not in row for row in rows)
    assert all((row["tempered_loss"] == row["loss"]) == (row["test_temperature"] == 1) for row in rows)


PRIVATE = ["privacy=user_level", "privacy.noise_multiplier=1.0", "method.aggregation=uniform"]


@pytest.mark.parametrize(("words", "means"), [
    (["method=ditto", *PRIVATE], ()),
    (["method=clustered_fedavg", "fleet=phones_drop", "fleet.dropout=0.9"], ("staleness",)),
    (["method=fedavg", "fleet=phones_drop", "fleet.dropout=0.6"], ("staleness",)),
], ids=["private", "clustered fleet", "fleet"])  # fmt: skip
def test_round_rows_have_null_means_without_participants(tmp_path, words, means):
    small = replaced(TINY_IMAGES, "training.clients_per_round=1", "training.rounds=8", "training.small_clients=allow")
    record = run(tmp_path, *small, *words)
    assert {bool(row["participants"]) for row in record.rows} == {True, False}
    for row in record.rows:
        found = [row[key] is None for key in ("train_loss", "train_temperature", *means)]
        assert found == [not row["participants"]] * len(found)
        assert row.keys() <= {*LOG_VALUES, *METRICS, "own_loss"}  # plug-ins cannot use these names
    if means:
        assert record.result["fleet"]["empty"] == sum(not row["participants"] for row in record.rows)
