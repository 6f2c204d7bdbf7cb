"""Records of coresets and what they classify: believed when sound, refused when not; figures of damaged files."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from knot_runner.records import read_result, write_result
from knot_runner.report.figures import style as figure_style
from knot_runner.report.figures.coreset import coreset_accuracy, coreset_images
from knot_runner.report.records.run_summary import summary_table
from knot_runner.report.run_folders import Job
from knot_runner.results import kind_problem
from tests.golden.messages import refuses
from tests.unit.report.sealing import save_file

BOTH = {
    "task": "mnist", "method": "coreset", "seed": 0, "status": "done", "source": "local", "points": 4, "clients": 5,
    "shape": [1, 3, 2], "datasets": {"train": 50, "test": 20}, "labels": {"names": ["a", "b", "c"]},
    "distance": "federated", "losses": [3.0, 2.0], "notes": [], "seconds": {"total": 1.0, "descent": 0.5},
}  # fmt: skip
CORESET = {**BOTH, "kind": "coreset", "metrics": {"distance": {"ALL": 2.0}}, "classes_covered": 2}
SCORES = {"accuracy": {"ALL": 0.8}, "f1": {"ALL": 0.7}, "client_accuracy": {"weighted": 0.8, "unweighted": 0.75}}
KNN = {**BOTH, "kind": "knn", "metrics": SCORES}


@pytest.mark.parametrize("record", [CORESET, KNN])
def test_sound_records_are_believed_and_shown(record: dict[str, Any]) -> None:
    assert kind_problem(record) == ""
    console = Console(width=100, file=io.StringIO())
    console.print(summary_table(record))
    said = console.file.getvalue()
    assert ("2 of 3" in said) if record["kind"] == "coreset" else ("0.800" in said and "0.750" in said)


@pytest.mark.parametrize(
    ("record", "changes", "key"),
    [
        (CORESET, {"points": 0}, "points"),
        (CORESET, {"shape": [1, 3]}, "shape"),
        (CORESET, {"losses": [1.0, float("nan")]}, "losses"),
        (CORESET, {"losses": []}, "losses"),
        (CORESET, {"distance": "guess"}, "distance"),
        (CORESET, {"metrics": {"distance": {"ALL": -1.0}}}, "metrics"),
        (CORESET, {"classes_covered": 4}, "classes_covered"),
        (CORESET, {"seconds": {"total": 1.0}}, "seconds"),
        (KNN, {"metrics": {**SCORES, "accuracy": {"ALL": 1.2}}}, "metrics"),
        (KNN, {"metrics": {**SCORES, "f1": None}}, "metrics"),
        (KNN, {"clients": True}, "clients"),
        (KNN, {"labels": {"names": "abc"}}, "labels"),
        (KNN, {"datasets": {"train": 50}}, "datasets"),
    ],
)
def test_impossible_records_are_refused(record: dict[str, Any], changes: dict[str, Any], key: str) -> None:
    assert kind_problem({**record, **changes}).startswith(key)


def job(folder: Path, result: dict[str, Any], **changes: Any) -> Job:
    """A job whose folder holds ``result``."""
    config = {
        "method": {"distance": result["distance"], "fedwad": {"support": 10}, "encoder": None},
        "partition": {"kind": "shards", "clients": 5, "shards_per_client": 2},
    }
    write_result(folder, {**result, **changes})
    method, seed = changes.get("method", "coreset"), changes.get("seed", 0)
    return Job(folder.name, folder, "mnist", method, seed, "", config)


def points(folder: Path, **changes: np.ndarray) -> None:
    arrays = {"points": np.full((4, 6), 0.5, np.float32), "labels": np.array([1, 0, 2, 0])}
    save_file({**arrays, **changes}, folder / "coreset.safetensors")
    write_result(folder, read_result(folder))  # which seals them, too


def test_images_are_drawn_in_the_order_of_their_labels(tmp_path: Path) -> None:
    from matplotlib.image import imread

    jobs = [job(tmp_path / "a", CORESET), job(tmp_path / "b", {**CORESET, "distance": "exact"})]
    for one in jobs:
        points(one.folder)
    lines = coreset_images(jobs, tmp_path / "f.png")
    assert lines == [
        f"mnist, {name}: distance to all clients' samples 2, 2 of 3 classes" for name in ("FedWaD, S=10", "exact")
    ]
    assert (
        imread(tmp_path / "f.png").shape[1] / figure_style.DPI > 5
        and len((tmp_path / "f.csv").read_text().splitlines()) == 5
    )


def test_a_run_without_its_coreset_is_named(tmp_path: Path) -> None:
    with refuses():
        coreset_images([job(tmp_path / "a", CORESET)], tmp_path / "f.png")


def test_accuracies_are_means_over_seeds_by_clients(tmp_path: Path) -> None:
    jobs = []
    for seed, clients, accuracy in ((0, 5, 0.8), (1, 5, 0.6), (0, 9, 0.5), (1, 9, 0.5)):
        scores = {**SCORES, "accuracy": {"ALL": accuracy}}
        jobs.append(job(tmp_path / f"{seed}-{clients}", KNN, seed=seed, clients=clients, metrics=scores))
    lines = coreset_accuracy(jobs, tmp_path / "f.png")
    assert lines == [
        "coreset, 5 clients: accuracy 70.00%",
        "coreset, 9 clients: accuracy 50.00%",
    ]
    rows = (tmp_path / "f.csv").read_text().splitlines()
    # 60 and 80: 70 +- 12.706 x 10, cut at 0 and 100%
    assert rows[1] == "coreset,5,70,0,100,2"


def test_runs_of_another_kind_are_refused(tmp_path: Path) -> None:
    with refuses():
        coreset_images([job(tmp_path / "a", KNN)], tmp_path / "f.png")
    with refuses():
        coreset_accuracy([job(tmp_path / "b", CORESET)], tmp_path / "f.png")
