"""Figures of coresets and of what they classify."""

import numpy as np
import pytest

from knot_runner.papers.fedwad.coreset_figures import coreset_accuracy, coreset_images
from knot_runner.report.run_folders import Job
from tests.contents import write_content
from tests.golden.messages import refuses
from tests.unit.report.made_runs import CORESET, KNN, SCORES, assert_drawn, csv_rows, save_file


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
    jobs = [job(tmp_path / "a", CORESET), job(tmp_path / "b", {**CORESET, "distance": "exact"})]
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
    (coreset_images, CORESET), (coreset_images, KNN), (coreset_accuracy, CORESET),
], ids=["no coreset on record", "images of another kind", "accuracy of another kind"])  # fmt: skip
def test_run_that_cannot_be_drawn_is_refused(figure, result, tmp_path):
    with refuses():
        figure([job(tmp_path / "a", result)], tmp_path / "f.png")


def test_coreset_accuracy_averages_seeds_per_client_count(tmp_path):
    jobs = []
    for seed, clients, accuracy in ((0, 5, 0.8), (1, 5, 0.6), (0, 9, 0.5), (1, 9, 0.5)):
        scores = {**SCORES, "accuracy": {"ALL": accuracy}}
        jobs.append(job(tmp_path / f"{seed}-{clients}", KNN, seed=seed, clients=clients, metrics=scores))
    lines = coreset_accuracy(jobs, tmp_path / "f.png")
    assert lines == ["coreset, 5 clients: accuracy 70.00%", "coreset, 9 clients: accuracy 50.00%"]
    # 60 and 80: 70 +- 12.706 x 10, cut at 0 and 100%
    assert (tmp_path / "f.csv").read_text().splitlines()[1] == "coreset,5,70,0,100,2"
