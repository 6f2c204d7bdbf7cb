"""Coresets and their nearest-neighbor classifier as runs: what they leave, resume after kills, refusals, figures."""

import csv
import dataclasses
from collections import Counter

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

import knot_runner as kr
from knot_runner import compose
from knot_runner.cli.main import main
from knot_runner.papers.fedwad import coreset
from knot_runner.papers.fedwad.coreset_figures import _strip, coreset_images
from knot_runner.report.run_folders import Job
from tests.contents import write_content
from tests.golden.messages import refuses
from tests.runs import RunRecord, run
from tests.tiny import CORESET, KNN
from tests.unit.report import made_runs
from tests.unit.report.made_runs import assert_drawn, csv_rows, refuse_changes, save_file


def result_and_coreset(record: RunRecord) -> tuple[dict, list[dict], dict]:
    """All that must be equal."""
    return record.result, record.rows, {k: v.numpy().tobytes() for k, v in record.tensors("coreset").items()}


@pytest.mark.parametrize("distance", ["federated", "exact"])
def test_coreset_run_records_losses_points_and_participants(tmp_path, distance):
    record = run(tmp_path, *CORESET, f"method.distance={distance}")
    result, kept = record.result, record.tensors("coreset")
    assert [row["round"] for row in record.rows] == list(range(1, 13))
    assert (result["kind"], result["status"], result["points"]) == ("coreset", "done", 5)
    assert len(result["losses"]) == 12 and result["losses"][-1] < 0.9 * result["losses"][0]
    assert kept["points"].shape == (5, 64) and 0 <= kept["points"].min() <= kept["points"].max() <= 1
    np.testing.assert_allclose(kept["points"], (kept["codes"] * 0.3081 + 0.1307).clamp(0, 1), atol=1e-6)
    assert result["classes_covered"] == len(np.unique(kept["labels"]))
    assert [row["round"] for row in record.rows] == list(range(1, 13))
    assert all(len(set(row["participants"])) == 3 and set(row["participants"]) <= set(range(6)) for row in record.rows)
    assert not (record.folder / "commit.json").exists()


def test_coresets_of_codes_come_back_as_images(tmp_path):
    record = run(tmp_path, *CORESET, "+encoder@method.encoder=cifar_untrained", "method.encoder.sizes=[4,6]")
    kept = record.tensors("coreset")
    assert kept["points"].shape == (5, 64) and kept["codes"].shape == (5, 6 * 2 * 2)
    assert record.result["shape"] == [1, 8, 8]


def test_labels_are_those_of_the_nearest_sample():
    points, queries = np.split(np.random.default_rng(0).normal(size=(59, 3)), [50])
    labels = np.arange(50) % 7
    near = NearestNeighbors(n_neighbors=1).fit(points[10:30])
    found = coreset.nearest_labels(queries, points[10:30], labels[10:30])
    assert found.tolist() == labels[10:30][near.kneighbors(queries)[1][:, 0]].tolist()


@pytest.mark.thorough
def test_coreset_knn_records_coresets_and_resumes_from_commits(tmp_path, monkeypatch):
    alone = run(tmp_path / "alone", *KNN)
    result, kept = alone.result, alone.tensors("coreset")
    assert kept["codes"].shape == (24, 8) and kept["clients"].tolist() == [k // 4 for k in range(24)]
    assert result["datasets"]["train"] == 150  # the other half is the encoder's
    assert 0.5 < result["metrics"]["accuracy"]["ALL"] <= 1 and len(result["losses"]) == 6
    per_client = [set(kept["labels"][kept["clients"] == k].tolist()) for k in range(6)]
    assert max(map(len, per_client)) <= 4 and set.union(*per_client) > {0, 1, 2}
    real, calls = coreset.own_coreset, []

    def fails_at_the_fourth(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("as if killed")
        return real(*arguments)

    monkeypatch.setattr(coreset, "own_coreset", fails_at_the_fourth)
    with pytest.raises(RuntimeError, match="as if killed"):
        run(tmp_path / "cut", *KNN)
    assert not list((tmp_path / "cut").rglob("result.json"))
    again = run(tmp_path / "cut", *KNN)
    assert 4 + 3 <= len(calls) < 4 + 6  # some of three were committed
    assert result_and_coreset(again) == result_and_coreset(alone)


@pytest.mark.parametrize("words", [
    [*CORESET, "method.participants=7"], [*CORESET, "method.samples=0"],
    [*CORESET, "method.fedwad.privacy={mechanism: gaussian, epsilon: 1.0, delta: 1e-5, clip: 1.0}"],
    [*KNN, "method.encoder_share=0"], [*KNN, "method.encoder.sizes=[]"],
], ids=lambda words: words[-1])  # fmt: skip
def test_coresets_that_cannot_be_are_refused(tmp_path, words):
    with refuses():
        run(tmp_path, *words)


KNN_PRESET = [
    "arm=points_2,fedper", "partition.num_clients=3,4", "task.max_examples=200", "task.shape=[1,8,8]",
    "model.hidden=[8]", "training.rounds=1", "training.local_epochs=1", "hardware.num_workers=1",
]  # fmt: skip
CORESET_PRESET = [
    *(word for word in CORESET if not word.startswith(("method=", "partition", "method.fedwad.support", "task=mnist"))),
    "partition.num_clients=6", "partition.shards_per_client=2", "method.fedwad.support=5", "hardware.num_workers=1",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(("preset", "words", "said", "rows"), [
    ("fedwad/coreset", CORESET_PRESET, "mnist, FedWaD, S=5: distance to all", {"exact": 12, "FedWaD, S=5": 12}),
    ("fedwad/knn", KNN_PRESET, "coreset_knn, num_clients 3, accuracy (%)", {"coreset_knn": 2, "fedper": 2}),
], ids=["coreset", "knn"])  # fmt: skip
def test_figure_of_a_coreset_preset(tmp_path, capsys, preset, words, said, rows):
    kr.sweep([f"experiment={preset}", *words, f"paths.output_dir={tmp_path}"])
    assert main(["plot", preset, *words, f"paths.output_dir={tmp_path}"]) == 0, capsys.readouterr().err
    assert said in capsys.readouterr().out
    assert (tmp_path / "figures" / f"{preset}.png").read_bytes()[:4] == b"\x89PNG"
    with (tmp_path / "figures" / f"{preset}.csv").open() as file:
        found = list(csv.DictReader(file))
    assert Counter(row.get("coreset") or row["series"] for row in found) == rows


@pytest.mark.real_data
def test_coreset_of_real_digits_comes_near(tmp_path, data_root):
    real = ["task.source=local", f"paths.data_dir={data_root}", "task.max_examples=1000", "task.shape=[1,28,28]"]
    changes = ["method.epochs=40", "method.points=10", "method.distance=exact", "method.samples=100"]
    result = run(tmp_path, *CORESET, *real, *changes).result
    assert result["metrics"]["distance"]["ALL"] < 0.6 * result["losses"][0] and result["classes_covered"] >= 4


def job(folder, result, **changes):
    """A job whose folder holds ``result``."""
    config = {
        "method": {"distance": result["distance"], "fedwad": {"support": 10}, "encoder": None},
        "partition": {"kind": "shards", "num_clients": 5, "shards_per_client": 2},
    }
    write_content(folder, {**result, **changes})
    method, seed = changes.get("method", "coreset"), changes.get("seed", 0)
    return Job(folder.name, folder, "mnist", method, seed, "", config)


def test_coreset_images_draws_and_describes_each_run(tmp_path):
    jobs = [job(tmp_path / "a", made_runs.CORESET), job(tmp_path / "b", {**made_runs.CORESET, "distance": "exact"})]
    arrays = {"points": np.full((4, 6), 0.5, np.float32), "labels": np.array([1, 0, 2, 0])}
    for one in jobs:
        save_file(arrays, one.folder / "coreset.safetensors")
    lines = coreset_images(jobs, tmp_path / "f.png")
    assert lines == [
        f"mnist, {name}: distance to all clients' samples 2, 2 of 3 classes" for name in ("FedWaD, S=10", "exact")
    ]
    assert_drawn(tmp_path / "f.png")
    assert len(csv_rows(tmp_path / "f.png")) == 4


@pytest.mark.parametrize(("figure", "result"), [
    (coreset_images, made_runs.CORESET), (coreset_images, made_runs.KNN),
], ids=["no coreset on record", "images of another kind"])  # fmt: skip
def test_run_that_cannot_be_drawn_is_refused(figure, result, tmp_path):
    with refuses():
        figure([job(tmp_path / "a", result)], tmp_path / "f.png")


def test_coreset_draws_ten_clients_or_all():
    settings = compose(["task=mnist", "method=coreset"])[0].method
    assert [coreset.participants(settings, clients) for clients in (4, 10, 30)] == [4, 10, 10]
    assert coreset.participants(dataclasses.replace(settings, participants=3), 30) == 3


def test_reader_refuses_file_with_wrong_checksum(factory):
    refuse_changes(factory.made(), "coreset.safetensors", lambda run: _strip(run))
