"""Figures of distances between data sets, by hand."""

import numpy as np
import pytest

from knot_runner.config.strict import digest
from knot_runner.papers.fedwad import matrix_figures as data_distances
from knot_runner.papers.fedwad.distance_figures import distance_runtime, moving_measure
from knot_runner.papers.fedwad.results import distance_summary, matrix_summary
from knot_runner.report.run_folders import Job
from knot_runner.results import result_of
from tests.contents import write_content
from tests.golden.messages import refuses
from tests.unit.report.made_runs import (
    EXACT,
    assert_drawn,
    csv_rows,
    distance_result,
    matrix_result,
    save_file,
    seal,
    shown,
)


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
    write_content(other.folder, {"kind": "probe", "temperatures": [1.0], "labels": {"names": ["a"]}})
    for draw in (data_distances.matrix_figure, data_distances.distance_course):
        with refuses():
            draw([other], tmp_path / "figure.png")
    missing = Job("none", tmp_path / "none", "image_sets", "dataset_distance", 0)
    with refuses():
        data_distances.matrix_figure([missing], tmp_path / "x.png", command="knot-runner experiment=x")


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


def test_agreement_by_hand():
    """Exact 1, 2, 4; ours 3, 2, 8: ranks 2, 1, 3 for 1, 2, 3, so rho = 1 - 6 * 2 / 24; one of three orders turned."""
    found = data_distances.agreement_of(np.array([3.0, 2.0, 8.0]), np.array([1.0, 2.0, 4.0]))
    assert found == (pytest.approx(0.5), pytest.approx(2 / 3), 2.0)  # ratios 3, 1, 2


def test_agreement_is_none_without_an_order():
    some, flat = np.array([1.0, 2.0, 4.0]), np.ones(3)
    assert data_distances.agreement_of(some, flat) is None and data_distances.agreement_of(flat, some) is None
    assert data_distances.agreement_of(some[:1], some[:1]) is None
