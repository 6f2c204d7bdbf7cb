"""Coresets and their nearest-neighbour classifier as runs: what they leave, resume after kills, refusals, figures."""

import csv
import functools
import json
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from rich.console import Console
from safetensors.numpy import load_file
from sklearn.neighbors import NearestNeighbors

from knot_runner.cli.main import main
from knot_runner.composing.commands import compose_all
from knot_runner.pipelines import coreset, coreset_knn
from knot_runner.pipelines.context import RunContext
from knot_runner.pipelines.runs.single_run import complete_run
from knot_runner.report.records.run_summary import summary_table
from tests.forked import Forked, reached

#: Scikit-learn's digits at 8 x 8 on six clients.
DIGITS = ["task=mnist", "task.limit=300", "task.shape=[1,8,8]", "partition=shards", "partition.clients=6"]
CORESET = [
    *DIGITS, "method=coreset", "partition.shards_per_client=8", "method.epochs=12", "method.points=5", "method.lr=0.2",
    "method.participants=3", "method.samples=20", "method.fedwad.iterations=3", "method.fedwad.support=5",
]  # fmt: skip
KNN = [
    *DIGITS, "method=coreset_knn", "partition.shards_per_client=2", "method.epochs=15", "method.points=4",
    "method.lr=0.5", "method.fedwad.iterations=3", "method.encoder.sizes=[32,8]", "method.encoder.epochs=40",
    "method.encoder.batch=30", "method.encoder.lr=0.01",
]  # fmt: skip


def carried_out(out: Path, overrides: list[str]) -> None:
    """All jobs of ``overrides``, as the command line runs them, without Hydra's launcher, which takes a second each."""
    for job in compose_all([*overrides, f"paths.out={out}"])[0]:
        text = OmegaConf.to_yaml(OmegaConf.create(job.config))
        result = complete_run(
            RunContext(job.settings, job.method, job.folder, text, job.run_id, lambda *_: None, lambda _: None)
        )
        Console(width=200).print(summary_table(result))


def made(out: Path, overrides: list[str]) -> tuple[dict, Path]:
    """The result of one run, and its folder."""
    carried_out(out, overrides)
    return record(out)


def record(out: Path) -> tuple[dict, Path]:
    (folder,) = (path.parent for path in out.glob("*/*/*/result.json"))
    return json.loads((folder / "result.json").read_text()), folder


def lasting(out: Path) -> tuple[dict, dict, list[dict]]:
    """All that must be equal: result and log without times, and the coreset."""
    result, folder = record(out)
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for row in (result, *rows):
        row.pop("seconds"), row.pop("digest", None)
    return result, {k: v.tobytes() for k, v in load_file(folder / "coreset.safetensors").items()}, rows


@pytest.mark.parametrize("distance", ["federated", "exact"])
def test_a_coreset_run_and_what_it_leaves(tmp_path, distance, capsys):
    result, folder = made(tmp_path, [*CORESET, f"method.distance={distance}"])
    assert (result["kind"], result["status"], result["points"]) == ("coreset", "done", 5)
    assert len(result["losses"]) == 12 and result["losses"][-1] < 0.9 * result["losses"][0]
    kept = load_file(folder / "coreset.safetensors")
    assert kept["points"].shape == (5, 64) and 0 <= kept["points"].min() <= kept["points"].max() <= 1
    back = np.clip(kept["codes"] * 0.3081 + 0.1307, 0, 1)
    np.testing.assert_allclose(kept["points"], back, atol=1e-6)
    assert result["classes_covered"] == len(np.unique(kept["labels"]))
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 13))
    assert all(len(set(row["participants"])) == 3 and set(row["participants"]) <= set(range(6)) for row in rows)
    assert not (folder / "commit.json").exists() and "distance to all" in capsys.readouterr().out


def test_coresets_of_codes_come_back_as_images(tmp_path):
    encoder = ["+encoder@method.encoder=cifar_untrained", "method.encoder.sizes=[4,6]"]
    result, folder = made(tmp_path, [*CORESET, *encoder])
    kept = load_file(folder / "coreset.safetensors")
    assert kept["points"].shape == (5, 64) and kept["codes"].shape == (5, 6 * 2 * 2) and result["shape"] == [1, 8, 8]


@pytest.mark.thorough
def test_a_nearest_neighbour_run_is_what_its_coresets_say(tmp_path, capsys):
    result, folder = made(tmp_path, KNN)
    kept = load_file(folder / "coreset.safetensors")
    assert kept["codes"].shape == (24, 8) and kept["clients"].tolist() == [k // 4 for k in range(24)]
    assert result["datasets"]["train"] == 150  # the other half is the encoder's
    assert 0.5 < result["metrics"]["accuracy"]["ALL"] <= 1 and len(result["losses"]) == 6
    per_client = [set(kept["labels"][kept["clients"] == k]) for k in range(6)]
    assert max(map(len, per_client)) <= 4 and set.union(*per_client) > {0, 1, 2}
    assert "accuracy" in capsys.readouterr().out


def test_labels_are_those_of_the_clients_nearest_sample():
    points = np.random.default_rng(0).normal(size=(50, 3))
    labels = np.arange(50) % 7
    near = NearestNeighbors(n_neighbors=1).fit(points[10:30])
    queries = np.random.default_rng(1).normal(size=(9, 3))
    found = coreset.nearest_labels(queries, points[10:30], labels[10:30])
    assert found.tolist() == labels[10:30][near.kneighbors(queries)[1][:, 0]].tolist()


@pytest.mark.thorough
def test_an_interrupted_run_of_many_coresets_ends_as_an_undisturbed_one(tmp_path, monkeypatch):
    made(tmp_path / "alone", KNN)
    real, calls = coreset_knn.own_coreset, []

    def fails_at_the_fourth(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("as if killed")
        return real(*arguments)

    monkeypatch.setattr(coreset_knn, "own_coreset", fails_at_the_fourth)
    with pytest.raises(RuntimeError, match="as if killed"):
        made(tmp_path / "cut", KNN)
    assert not list((tmp_path / "cut").rglob("result.json"))
    made(tmp_path / "cut", KNN)
    assert len(calls) == 4 + 3  # three of six were committed
    assert lasting(tmp_path / "cut") == lasting(tmp_path / "alone")


@pytest.mark.thorough
def test_kill_9_and_the_same_command_again(tmp_path):
    longer = [*CORESET, "method.epochs=400", "method.distance=exact"]
    made(tmp_path / "alone", longer)
    until = functools.partial(reached, tmp_path / "killed", 0)
    killed = Forked(*longer, f"paths.out={tmp_path / 'killed'}", until=until)
    assert killed.wait() == -signal.SIGKILL, killed.said
    assert not list((tmp_path / "killed").rglob("result.json"))
    made(tmp_path / "killed", longer)
    assert lasting(tmp_path / "killed") == lasting(tmp_path / "alone")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([*CORESET, "method.participants=7"], "method.participants: 7 are more than the 6 clients; 6 is the most"),
        ([*CORESET, "method.samples=0"], "method.samples: 0 is not at least 1"),
        (
            [*CORESET, "method.fedwad.privacy={mechanism: gaussian, epsilon: 1.0, delta: 1e-5, clip: 1.0}"],
            "method.fedwad.privacy: is of method=federated_distance alone",
        ),
        ([*KNN, "method.encoder_share=0"], "method.encoder_share: 0.0 of 300 images leaves none to train on"),
        ([*KNN, "method.encoder.sizes=[]"], "method.encoder.sizes: [] has no layer"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path, overrides, said, capsys):
    assert main([*overrides, f"paths.out={tmp_path}"]) != 0
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_the_encoder_and_the_clients_share_no_image():
    hp = SimpleNamespace(encoder=SimpleNamespace(epochs=1), encoder_share=0.3)
    held, rest = coreset_knn.split(hp, 50, 0)
    assert len(held) == 15 and sorted([*held, *rest]) == list(range(50))
    assert coreset_knn.split(hp, 50, 1)[0].tolist() != held.tolist()
    held, rest = coreset_knn.split(SimpleNamespace(encoder=None), 50, 0)  # clients get all
    assert len(held) == 0 and rest.tolist() == list(range(50))


def figure(out: Path, preset: str, overrides: list[str], capsys) -> tuple[str, list[dict]]:
    """What the preset's runs and figure say, and the CSV."""
    carried_out(out, [f"experiment={preset}", *overrides])
    assert main(["plot", preset, *overrides, f"paths.out={out}"]) == 0, capsys.readouterr().err
    assert (out / "figures" / f"{preset}.png").read_bytes()[:4] == b"\x89PNG"
    with (out / "figures" / f"{preset}.csv").open() as file:
        return capsys.readouterr().out, list(csv.DictReader(file))


@pytest.mark.thorough
def test_the_preset_of_coresets(tmp_path, capsys):
    small = [o for o in CORESET if not o.startswith(("method=", "partition", "method.fedwad.support", "task=mnist"))]
    small += ["partition.clients=6", "partition.shards_per_client=2", "method.fedwad.support=5", "hardware.workers=1"]
    said, rows = figure(tmp_path, "fedwad/coreset", small, capsys)
    assert "mnist, FedWaD, S=5: distance to all" in said
    assert {row["coreset"] for row in rows} == {"exact", "FedWaD, S=5"} and len(rows) == 2 * 12


@pytest.mark.thorough
def test_the_preset_of_nearest_neighbours_beside_personal_models(tmp_path, capsys):
    small = [
        "arm=points_2,fedper", "partition.clients=3,4", "task.limit=200", "task.shape=[1,8,8]",
        "model.hidden=[8]", "training.rounds=1", "training.epochs=1", "hardware.workers=1",
    ]  # fmt: skip
    said, rows = figure(tmp_path, "fedwad/knn", small, capsys)
    assert [(row["method"], row["clients"]) for row in rows] == [
        (name, clients) for name in ("points_2", "fedper") for clients in ("3", "4")
    ]
    assert "points_2, 3 clients: accuracy" in said


@pytest.mark.real_data
def test_a_coreset_of_real_digits(tmp_path, data_root):
    real = ["task.source=local", f"paths.data={data_root}", "task.limit=1000", "task.shape=[1,28,28]"]
    changes = ["method.epochs=40", "method.points=10", "method.distance=exact", "method.samples=100"]
    result, _ = made(tmp_path, [*CORESET, *real, *changes])
    assert result["metrics"]["distance"]["ALL"] < 0.6 * result["losses"][0] and result["classes_covered"] >= 4
