"""Figures of the federated distance, by hand."""

import numpy as np
import pytest

from knot_runner.config.strict import digest
from knot_runner.papers.fedwad.distance_figures import _scatter, distance_runtime, moving_measure
from knot_runner.papers.fedwad.results import distance_summary, matrix_summary
from knot_runner.report.run_folders import Job
from knot_runner.results import result_of
from tests.golden.messages import refuses
from tests.unit.report.made_runs import csv_rows, distance_result, matrix_result, refuse_changes, save_file, seal, shown


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


def summary(result):
    view = distance_summary if result["kind"] == "distance" else matrix_summary
    return shown(view("a title", result_of(result)))


def test_distance_summary_by_hand():
    lines = summary(distance_result(notes=["a [red]note[/red]"])).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[4:7]] == [
        ["federated,", "after", "3", "iterations", "2.2", "+10%", "0.5", "s"],
        ["exact,", "all", "samples", "at", "one", "place", "2", "0.25", "s"],
        ["closed", "form", "of", "the", "distributions", "4", "+100%"],
    ]
    assert [line.rstrip() for line in lines[8:]] == [
        "20 and 20 samples in 2 dimensions; approximate measures of 4 points",
        "a [red]note[/red]",
    ]


def test_distance_summary_of_other_runs():
    text = summary(distance_result(spent={"epsilon": 4.0, "delta": 1e-4}))
    assert "each client has spent epsilon 4, delta 0.0001 in all" in text
    assert "exact measures of 31 points" in summary(distance_result("exact") | {"support": [20, 26, 31]})
    assert "%" not in summary(distance_result(value=0.0, exact=0.0, closed_form=0.0))


def test_matrix_summary_shows_few_sets_as_grid():
    text = summary(matrix_result(notes=["set 9: left out"]))
    assert "set 2" in text and "4.0" in text and "set 9: left out" in text
    line = "exact optimal transport, centralized; 3 pairs of 3 data sets, 50 samples each; 1.5 s"
    assert line in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_matrix_summary_groups_many_clients():
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    far = np.where(np.equal.outer(groups, groups), 10.0, 1000.0) * (1 - np.eye(8))
    text = summary(matrix_result(far.tolist(), groups=groups, solver="federated", sizes=[5] * 4 + [9] * 4))
    rows = [line.split() for line in text.splitlines() if line.strip()]
    assert ["in", "one", "planted", "group", "4", "10.0", "10.0", "10.0"] in rows
    assert ["of", "two", "groups", "24", "1,000.0", "1,000.0", "1,000.0"] in rows
    assert "5 to 9 samples each" in text


def test_reader_refuses_file_with_wrong_checksum(factory):
    refuse_changes(factory.made(), "measures.safetensors", lambda run: _scatter(None, run))
