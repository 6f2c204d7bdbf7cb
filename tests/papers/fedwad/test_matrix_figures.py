"""Figures of distances between data sets, by hand."""

import numpy as np

from knot_runner.config.strict import digest
from knot_runner.papers.fedwad import matrix_figures as data_distances
from knot_runner.report.run_folders import Job
from tests.contents import write_content
from tests.golden.messages import refuses
from tests.unit.report.made_runs import EXACT, assert_drawn, csv_rows, matrix_result


def job(
    root, matrix, solver = "federated", seed = 0, label = "",
    kind = "image_sets", samples = 50, groups = None, **fedwad,
):  # fmt: skip
    """A finished run; ``label``: further swept settings."""
    otdd = {
        "solver": solver, "samples": samples, "precision": "float64",
        "fedwad": {"support": 10, "iterations": 5, "t": 0.5} | fedwad,
    }  # fmt: skip
    config = {"task": {"name": "image_sets", "kind": kind}, "method": {"otdd": otdd}, "partition": None}
    name = digest([otdd, seed, label], 12)
    made = Job(name, root / name, "image_sets", "dataset_distance", seed, label, config)
    made.folder.mkdir(parents=True)
    write_content(made.folder, matrix_result(matrix, solver=solver, seed=seed, groups=groups))
    return made


def scaled(factor):
    return (factor * np.array(EXACT)).tolist()


def test_matrix_figure_compares_with_matching_exact_run(tmp_path):
    turned = [[0.0, 3.0, 2.0], [3.0, 0.0, 8.0], [2.0, 8.0, 0.0]]
    jobs = [
        job(tmp_path, EXACT, "exact"),
        job(tmp_path, EXACT, "exact", support=99),  # an exact distance has no S: the same, and counted once
        job(tmp_path, scaled(100), "exact", seed=1),
        job(tmp_path, scaled(3)),
        job(tmp_path, turned, seed=1),
        job(tmp_path, scaled(7), seed=2),  # no exact run of its seed
    ]
    path = tmp_path / "figure.png"
    lines = data_distances.matrix_figure(jobs, path, ["A note."])
    assert_drawn(path)
    assert lines[0] == "exact: all pairs 1.0 to 400.0, median 52.0"
    assert lines[1] == "FedWaD, S=10, K=5, t=0.5: all pairs 2.0 to 28.0, median 7.0"
    assert lines[2] == (
        "FedWaD, S=10, K=5, t=0.5: with the exact distances, Spearman 0.750 (0.500 to 1.000 over 2 seeds); 83% of 3 "
        "order relations kept; 1.51 times as large (median)"
    )
    rows = csv_rows(path)
    assert len(rows) == 3 * 5 and rows[0] == {
        "setting": "exact", "seed": "0", "first": "set 0", "second": "set 1", "distance": "1"
    }  # fmt: skip


def test_matrix_figure_titles_show_differing_settings(tmp_path):
    jobs = [
        job(tmp_path, EXACT, label="partition=pairs, method.otdd.fedwad.t=0.5", kind="images"),
        job(tmp_path, scaled(3000), label="partition=shards, method.otdd.fedwad.t=0.5", kind="images"),
    ]
    first, second = data_distances.matrix_figure(jobs, tmp_path / "figure.png")
    assert first.startswith("partition=pairs, FedWaD, S=10, K=5, t=0.5: all pairs 1.0 to 4.0")
    assert second.startswith("partition=shards, FedWaD, S=10, K=5, t=0.5: all pairs 3,000.0 to 12,000.0")


def test_matrix_figure_reports_distances_by_planted_group(tmp_path):
    groups = [1, 0, 1, 0, 2, 2, 0, 1, 2]
    far = np.where(np.equal.outer(groups, groups), 10.0, 1000.0) * (1 - np.eye(9))
    one, other = (job(tmp_path / str(s), far.tolist(), seed=s, kind="images", groups=groups) for s in (0, 1))
    write_content(one.folder, matrix_result(far.tolist(), solver="federated", groups=groups))
    lines = data_distances.matrix_figure([one, other], tmp_path / "figure.png")
    assert "in one planted group 10.0 to 10.0" in lines[0] and "of two groups 1,000.0 to 1,000.0" in lines[0]
    plain = job(tmp_path / "plain", far.tolist(), kind="images")
    assert len(data_distances.matrix_figure([plain], tmp_path / "plain.png")) == 1


def test_distance_course_by_samples_and_supports(tmp_path):
    jobs = [
        job(tmp_path, scaled(f), solver, samples=n, support=s)
        for n in (20, 50)
        for solver, s, f in (("exact", 2, 1), ("exact", 5, 1), ("federated", 2, 3), ("federated", 5, 2))
    ]
    path = tmp_path / "figure.png"
    lines = data_distances.distance_course(jobs, path)
    assert_drawn(path)
    assert "set 1 - set 2, exact: 4 at n=50" in lines
    assert "set 1 - set 2, FedWaD, S=2: 12 at n=50" in lines and "seconds, FedWaD, S=5: 0.5 at n=50" in lines
    rows = csv_rows(path)
    assert {row["n"] for row in rows} == {"20", "50"} and {row["seeds"] for row in rows} == {"1"}
    assert len(rows) == 2 * (3 + 1) * 3


def test_distance_course_averages_many_pairs(tmp_path):
    many = (1.0 - np.eye(5)).tolist()
    jobs = [job(tmp_path, many, iterations=k, seed=s) for k in (1, 3) for s in (0, 1)]
    lines = data_distances.distance_course(jobs, tmp_path / "figure.png")
    assert lines == ["mean of 10 pairs, FedWaD: 1 at K=3", "seconds, FedWaD: 0.15 at K=3"]


def test_data_distance_figures_refuse_unsuitable_runs(tmp_path):
    alone = job(tmp_path, EXACT)
    with refuses():
        data_distances.distance_course([alone], tmp_path / "figure.png")
    other = Job("probe", tmp_path / "probe", "image_sets", "dataset_distance", 0, "", alone.config)
    write_content(other.folder, {"kind": "probe", "temperatures": [1.0]})
    for draw in (data_distances.matrix_figure, data_distances.distance_course):
        with refuses():
            draw([alone, other], tmp_path / "figure.png")
    missing = Job("none", tmp_path / "none", "image_sets", "dataset_distance", 0)
    with refuses():
        data_distances.matrix_figure([missing], tmp_path / "x.png", command="knot-runner experiment=x")
