"""Clustered runs: their records, the stages that they share, and the paper's setting on real digits."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.metrics import accuracy_score, adjusted_rand_score, f1_score, log_loss

from knot_runner.cli.main import main
from knot_runner.config.settings.methods.federated import FederatedTraining
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.engine.federated.lean import Lean
from knot_runner.methods.federation import Federation
from knot_runner.methods.party import Party
from knot_runner.pipelines import scores
from knot_runner.report.records.run_summary import cluster_lines
from knot_runner.results import result_of
from tests.contents import problem_of
from tests.runs import RunRecord, command
from tests.tiny import CLUSTERED_IMAGES

FEDERATED = FederatedTraining("t", 1, 1, 1, 4, 0.1, 0.0, 0.0, True, False, "allow", None, False, 1, "sgd")


def run(out: Path, *overrides: str) -> RunRecord:
    """Run the small command with ``overrides``."""
    return command(out, *CLUSTERED_IMAGES, *overrides)


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    """The output folder of most runs of this file, which thus share their distances."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def once(out) -> RunRecord:
    """A finished run of clustered FedAvg with the graph ``affinity``."""
    return run(out)


def test_clustered_run_records_clusters_and_their_models(once):
    result, rows, folder = once.result, once.rows, once.folder
    clusters = result["clusters"]
    groups = json.loads((folder / "partition.json").read_text())["groups"]
    assert clusters["graph"] == "affinity" and clusters["count"] == 5 == len(clusters["sizes"])
    assert clusters["ari"] == pytest.approx(adjusted_rand_score(groups, clusters["labels"]))
    assert clusters["ari"] == 1.0 and len(clusters["eigenvalues"]) == 10
    assert not problem_of(result) and result["kind"] == "federated"
    assert [row["round"] == number for number, row in enumerate(rows, 1)] == [True] * 3
    assert all(len(row["participants"]) == 5 for row in rows)  # one of every cluster
    assert [sorted({clusters["labels"][c] for c in row["participants"]}) for row in rows] == [[0, 1, 2, 3, 4]] * 3
    assert not (folder / "commit.json").exists() and not list(folder.rglob("*.tmp"))
    model = load_file(folder / "model.safetensors")
    assert {name.split("/")[1] for name in model} == set("01234")


def test_clustered_measures_match_scikit_learn_on_predictions(once):
    result, rows, folder = once.result, once.rows, once.folder
    last, arrays = rows[-1], load_file(folder / "predictions.safetensors")
    p, y = arrays["test.probabilities"].astype(float), arrays["test.labels"]
    assert last["accuracy"] == pytest.approx(accuracy_score(y, p.argmax(1)))
    assert last["f1"] == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    assert last["loss"] == pytest.approx(log_loss(y, p / p.sum(1, keepdims=True), labels=range(10)), rel=1e-4)
    sizes = json.loads((folder / "partition.json").read_text())["test"]
    right = np.split(p.argmax(1) == y, np.cumsum(sizes)[:-1])
    assert last["clients"] == pytest.approx([own.mean() for own in right])
    labels = np.array(result["clusters"]["labels"])
    by_cluster = [np.concatenate([right[c] for c in np.flatnonzero(labels == k)]).mean() for k in range(5)]
    over = result["metrics"]["client_accuracy"]
    assert over["clusters"] == pytest.approx(np.mean(by_cluster))
    assert over["weighted"] == pytest.approx(last["accuracy"]) == result["metrics"]["accuracy"]["ALL"]
    assert over["unweighted"] == pytest.approx(np.mean(last["clients"]))


def test_clustered_fedavg_with_one_cluster_equals_fedavg(tmp_path):
    """With ``graph=none``, no distances are computed, and weights and metrics equal those of FedAvg."""
    none = run(tmp_path, "method.clustering.graph=none")
    plain = run(tmp_path, "method=fedavg", "method.aggregation=uniform")
    assert not (tmp_path / "artifacts" / "distances").exists()
    ours, theirs = (load_file(one.folder / "model.safetensors") for one in (none, plain))
    assert {f"cluster/0/{name}" for name in theirs} == set(ours)
    assert all(np.array_equal(ours[f"cluster/0/{name}"], value) for name, value in theirs.items())
    result, rows, expected = none.result, none.rows, plain.rows
    for row, same in zip(rows, expected, strict=True):
        assert row["participants"] == same["participants"] and row["after"] == same["after"]
        assert row["accuracy"] == pytest.approx(same["accuracy"]) and row["f1"] == pytest.approx(same["f1"])
        assert row["loss"] == pytest.approx(same["loss"], rel=1e-5) and row["clients"] == same["clients"]
    assert result["clusters"]["sizes"] == [10] and result["clusters"]["ari"] is None
    assert result["metrics"]["client_accuracy"]["clusters"] == pytest.approx(rows[-1]["accuracy"])


def test_equal_clusters_share_rounds_across_graphs(out, once, monkeypatch):
    trained = []
    train = Lean.train
    monkeypatch.setattr(Lean, "train", lambda self, cohort: trained.append(len(cohort)) or train(self, cohort))
    again = run(out, "method.clustering.graph=sparse3")
    assert trained == []
    one, other = once.result, again.result
    assert once.rows == again.rows and one["metrics"] == other["metrics"] and one["artifact"] == other["artifact"]
    stored, same = ((own.folder / "predictions.safetensors").read_bytes() for own in (once, again))
    assert stored == same
    four = run(out, "method.clustering.clusters=4").result
    assert trained == [4, 4, 4] and four["artifact"] != one["artifact"]


def test_clustered_run_recreates_damaged_shared_rounds(out, once, capsys):
    log = out / "artifacts" / "rounds" / once.result["artifact"] / "rounds.jsonl"
    damaged = log.read_text().replace("1", "2")
    log.write_text(damaged)
    again = run(out, "method.clustering.otdd.samples=60")
    assert f"{log}: does not match its checksum" in "".join(capsys.readouterr().err.split("\n"))
    assert (log.parent / "set-aside-1" / "rounds.jsonl").read_text() == damaged
    assert again.result["metrics"] == once.result["metrics"]


def test_clusters_of_a_result_that_cannot_be(once):
    result = once.result
    clusters = result["clusters"]
    for changes in ({"sizes": [0]}, {"ari": 2}, {"graph": None}):
        assert "clusters" in problem_of({**result, "clusters": {**clusters, **changes}})
    result = result_of(result)
    assert next(cluster_lines(result)) == "5 clusters (affinity) of 2, 2, 2, 2, 2 clients"
    (line,) = cluster_lines(replace(result, clusters=replace(result.clusters, graph="none")))
    assert line.startswith("one cluster of all")
    assert list(cluster_lines(replace(result, clusters=None))) == []


@pytest.mark.parametrize(("clusters", "single"), [(10, 10), (5, 0)])
def test_clusters_smaller_than_their_rounds_are_counted_in_a_note(out, clusters, single):
    """In each round, two clients of a cluster participate, or one if the cluster has only one."""
    made = run(out, f"method.clustering.clusters={clusters}", "training.clients_per_round=2", "training.rounds=1")
    assert made.result["clusters"]["sizes"].count(1) == single
    counted = [note.split()[1] for note in made.result["notes"] if "have fewer than 2 clients" in note]
    assert counted == [str(single)] * bool(single) and len(made.rows[0]["participants"]) == 10


def test_over_clusters_ignores_cluster_without_test_images():
    rows = [torch.arange(size) for size in (4, 0, 12)]
    clients = tuple(Party(f"c{k}", own, own) for k, own in enumerate(rows))
    labels = Labels(["a", "b"], [[0.0], [1.0]], "semantic")
    everyone = Federation(clients, labels, FEDERATED, 0, torch.zeros(12, dtype=torch.int64))
    clusters = [everyone.cluster(members) for members in ([0, 2], [1])]
    assert scores.over_clusters([1.0, None, 0.5], everyone, clusters) == pytest.approx((4 + 6) / 16)


@pytest.mark.real_data
def test_clustering_recovers_mnist_groups_and_improves_accuracy(tmp_path, data_root):
    """20 clients with two classes each form the five planted clusters, which are more accurate after two rounds."""
    short = ["task=mnist_fedwad", "training=fedwad", "training.rounds=2", "training.local_epochs=1",
             "task.source=local", "task.max_examples=4000", f"paths.data_dir={data_root}",
             f"paths.output_dir={tmp_path}", "hardware.num_workers=1"]  # fmt: skip
    assert main(short) == 0
    assert main([*short, "method.clustering.graph=none"]) == 0
    by = {}
    for path in tmp_path.glob("*/*/*/result.json"):
        result = json.loads(path.read_text())
        by[result["clusters"]["graph"]] = result
    assert by["affinity"]["clusters"]["ari"] == 1.0
    ours, vanilla = (by[graph]["metrics"]["accuracy"]["ALL"] for graph in ("affinity", "none"))
    assert ours > vanilla + 0.3
