"""Figures of the federated distance, by hand."""

import numpy as np
import pytest

from knot_runner.config.strict import digest
from knot_runner.papers.fedwad.distance_figures import distance_runtime, moving_measure
from knot_runner.report.run_folders import Job
from tests.golden.messages import refuses
from tests.unit.report.made_runs import csv_rows, distance_result, save_file, seal


def made(root, label="", **of_record):
    """A finished run with its measures: xi moves from the origin towards (2, 2)."""
    result = distance_result(**of_record)
    run_id = digest({**result, "seconds": 0, "label": label}, 12)
    job = Job(run_id, root / run_id, "gaussians", "federated_distance", result["seed"], label)
    job.folder.mkdir()
    seal(job.folder, result)
    rng = np.random.default_rng(0)
    cloud = rng.normal(0, 0.3, (result["support"][0], result["dimension"])).astype(np.float32)
    arrays = {"mu": rng.normal(0, 0.3, (20, result["dimension"])), "nu": rng.normal(4, 0.3, (20, result["dimension"]))}
    for k in range(4):
        arrays |= {f"xi/{k}": cloud + 2 * k / 3, f"weights/{k}": np.full(len(cloud), 1 / len(cloud))}
    save_file({key: array.astype(np.float32) for key, array in arrays.items()}, job.folder / "measures.safetensors")
    return job


def test_moving_measure_shows_the_excess(tmp_path):
    jobs = [made(tmp_path), made(tmp_path, seed=1, values=[2.6, 2.4, 2.4], sums=[3.0, 2.6, 2.6])]
    lines = moving_measure(jobs, tmp_path / "figure.png")
    assert lines == [
        "FedWaD-a, S=4, relative excess after the last iteration: FedWaD's value 0.15 [-0.49, 0.79], "
        "server alone (Theorem 3) 0 [0, 0], sum A (Theorem 2) 0.25 [-0.39, 0.89]"
    ]
    rows = {(row["quantity"], row["iteration"]): row for row in csv_rows(tmp_path / "figure.png")}
    assert len(rows) == 9 and rows["server_only", "1"]["mean"] == "0.05"  # 1.9 falls short of 2
    values = rows["values", "3"]
    assert [values[key] for key in ("method", "mean", "seeds")] == ["FedWaD-a, S=4", "0.15", "2"]
    # of 0.1 and 0.2, by Student's t with one degree of freedom
    assert [float(values[key]) for key in ("low", "high")] == pytest.approx([0.15 - 0.6353102, 0.15 + 0.6353102])


def test_distance_runtime_shows_times_and_errors(tmp_path):
    slow = {"total": 9.0, "federated": 4.0, "exact": 0.75}
    jobs = [
        *(made(tmp_path, n=10, seed=seed) for seed in (0, 1)),
        made(tmp_path, n=20),
        made(tmp_path, n=20, seed=1, value=3.0),
        made(tmp_path, "method.fedwad.mode=exact", mode="exact", n=20, support=20, seconds=slow),
    ]
    lines = distance_runtime(jobs, tmp_path / "figure.png")
    assert lines == [
        # seed 0: two runs, .25 and .75 s; seed 1: .25 s
        "d=2, ratio 1:1, WD: n=20 in 0.375 s, relative error 0.5",
        "d=2, ratio 1:1, FedWaD-e: n=20 in 4 s, relative error 0.45",
        # |2.2 / 4 - 1| and |3 / 4 - 1|
        "d=2, ratio 1:1, FedWaD-a, S=4: n=20 in 0.5 s, relative error 0.35",
    ]
    rows = [row for row in csv_rows(tmp_path / "figure.png") if row["method"] == "FedWaD-a, S=4"]
    assert [(row["quantity"], row["n"], row["mean"]) for row in rows] == [
        ("seconds", "10", "0.5"), ("seconds", "20", "0.5"), ("error", "10", "0.45"), ("error", "20", "0.35"),
    ]  # fmt: skip


def test_distance_runtime_refuses_two_equal_distributions(tmp_path):
    with refuses():
        distance_runtime([made(tmp_path, closed_form=0.0)], tmp_path / "figure.png")
