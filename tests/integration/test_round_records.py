"""Rows of ``rounds.jsonl``: counted from 1, with the temperatures that were used, and null where nobody took part."""

import json

import pytest

from knot_runner.cli.main import main
from knot_runner.pipelines.rounds.summary import summarise
from knot_runner.report.tables.build import build_table
from tests.tiny import TINY_IMAGES, TINY_PARTIES, replaced
from tests.unit.report.conftest import FederatedFactory


def records(out, capsys, *words, code=0):
    assert main([*words, f"paths.out={out}"]) == code, capsys.readouterr().err
    (path,) = out.glob("*/*/*/result.json")
    log = path.parent / "rounds.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return json.loads(path.read_text()), rows


def test_best_round_and_target_count_as_the_rows_do():
    blank = {"loss": 1.0, "client_accuracy": {}}
    rows = [{"round": number, "accuracy": value, **blank} for number, value in enumerate((0.1, 0.4, 0.4), 1)]
    made = summarise(rows, 0.3)
    assert (made["best"]["round"], made["rounds_to_target"]) == (2, 2)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([*TINY_IMAGES, "method=fedavg"], "round"),
        ([*TINY_IMAGES, "method=clustered_fedavg", "training.small_clients=allow"], "round"),
        ([*TINY_IMAGES, "method=finetune"], "round"),
        ([*TINY_IMAGES, "method=fedavg", "fleet=phones_drop", "fleet.dropout=0.5"], "round"),
        (TINY_PARTIES, "round"),
        (["task=mnist", "task.limit=200", "method=coreset", "method.epochs=3", "partition.clients=4",
          "partition.floor=0", "method.participants=2"], "epoch"),
    ],
    ids=["fedavg", "clustered", "finetune", "fleet", "knot", "coreset"],
)  # fmt: skip
def test_rows_count_from_1(tmp_path, capsys, words, key):
    result, rows = records(tmp_path, capsys, *words)
    assert [row[key] for row in rows] == list(range(1, len(rows) + 1)) and len(rows) == 3
    if result.get("kind") == "federated":
        best = next(row for row in rows if row["accuracy"] == max(other["accuracy"] for other in rows))
        assert result["best"] == {"accuracy": best["accuracy"], "round": best["round"]}


@pytest.mark.parametrize("method", ["fedavg", "clustered_fedavg"])
def test_the_round_of_a_divergence_counts_from_1(tmp_path, capsys, method):
    words = replaced(TINY_IMAGES, "training.lr=1e30", f"method={method}", "training.small_clients=allow")
    result, _ = records(tmp_path, capsys, *words, code=1)
    assert not list((tmp_path / "artefacts").glob("rounds/*/info.json"))
    assert result["status"] == "diverged" and result["diverged"]["round"] == 1
    assert "diverged in round 1 at client" in capsys.readouterr().err


STRAGGLERS = ["+method.stragglers.share=1.0", "+method.stragglers.temperature=0.1"]


@pytest.mark.parametrize("method", ["fedavg", "clustered_fedavg", "finetune"])
@pytest.mark.parametrize(
    ("words", "train", "test"),
    [
        (["method.temperature=0.5"], [0.5] * 3, [0.5] * 3),
        (["method.temperature=0.5", "method.lr_control=true"], [1.0] * 3, [1.0] * 3),
        (["method.temperature=0.5", "method.lr_control=true", "method.hard_temperature=0.2"], [0.5] * 3, [1.0] * 3),
        (["method.temperature=0.5", *STRAGGLERS], [0.1] * 3, [0.5] * 3),
        (["method.temperature=4", "+method.schedule.end=1", "+method.schedule.rounds=2",
          "+method.schedule.shape=linear"], [4.0, 2.5, 1.0], [4.0, 2.5, 1.0]),
    ],
    ids=["plain", "lr_control", "per sample", "stragglers", "schedule"],
)  # fmt: skip
def test_rows_name_the_temperatures_that_were_used(tmp_path, capsys, method, words, train, test):
    small = ["training.small_clients=allow"]
    _, rows = records(tmp_path, capsys, *TINY_IMAGES, *small, f"method={method}", *words)
    assert [row["train_temperature"] for row in rows] == pytest.approx(train)
    assert [row["test_temperature"] for row in rows] == pytest.approx(test)
    assert all("temperature" not in row for row in rows)
    assert all((row["tempered_loss"] == row["loss"]) == (row["test_temperature"] == 1) for row in rows)


PRIVATE = ["privacy=user_level", "privacy.noise_multiplier=1.0", "method.aggregation=uniform"]


@pytest.mark.parametrize(
    ("words", "means"),
    [
        (["method=fedavg", *PRIVATE], ()),
        (["method=ditto", *PRIVATE], ()),
        (["method=clustered_fedavg", "fleet=phones_drop", "fleet.dropout=0.9"], ("staleness",)),
        (["method=fedavg", "fleet=phones_drop", "fleet.dropout=0.6"], ("staleness",)),
    ],
    ids=["private", "private ditto", "clustered fleet", "fleet"],
)
def test_a_round_in_which_nobody_took_part_has_no_means(tmp_path, capsys, words, means):
    small = replaced(TINY_IMAGES, "training.participants=1", "training.rounds=8", "training.small_clients=allow")
    result, rows = records(tmp_path, capsys, *small, *words)
    kinds = {bool(row["participants"]) for row in rows}
    assert kinds == {True, False}  # some rounds have participants, some have none
    for row in rows:
        found = [row[key] is None for key in ("train_loss", "train_temperature", *means)]
        assert found == [not row["participants"]] * len(found)
    if means:
        assert result["fleet"]["empty"] == sum(not row["participants"] for row in rows)


def facts(relation, delta, epsilon):
    sampling = {"add or remove": "poisson", "replace": "fixed"}[relation]
    return {"neighbours": relation, "sampling": sampling, "delta": delta, "epsilon": epsilon, "unit": "client",
            "rate": 0.5, "noise_multiplier": 1.0, "clip_norm": 1.0, "rounds": 1, "accountant": "x", "clipped": None,
            "median_norm": None}  # fmt: skip


@pytest.mark.parametrize(
    ("spent", "heads"),
    [
        ([("replace", 0.01, 7.27)], ["epsilon (replace, delta 0.01)"]),
        ([("add or remove", 0.01, 1.198), ("replace", 0.01, 7.27)],
         ["epsilon (add or remove, delta 0.01)", "epsilon (replace, delta 0.01)"]),
        ([("replace", 0.01, 7.27), ("replace", 1e-5, 12.0)],
         ["epsilon (replace, delta 0.01)", "epsilon (replace, delta 1e-05)"]),
    ],
)  # fmt: skip
def test_a_column_of_epsilon_has_one_relation_and_one_delta(tmp_path, spent, heads):
    federated, jobs = FederatedFactory(tmp_path), []
    for place, privacy in enumerate(spent):
        job = federated.job(label=f"privacy={place}")
        rows = federated.rows(job, [0.5])
        measured = federated.result(job, rows)["metrics"] | {"epsilon": {"ALL": privacy[2]}}
        jobs.append(federated.write(job, [0.5], metrics=measured, privacy=facts(*privacy)))
    table = build_table(jobs, None, ["epsilon", "accuracy"], kind="grid")
    own = [group for group in table.groups if group.metric_name == "epsilon"]
    assert [group.heading(0) for group in own] == heads
    means = [[row.cells[group.key][0].mean for group in own] for row in table.rows]
    assert means == [[spent[i][2] if i == j else None for j in range(len(own))] for i in range(len(spent))]
