"""Tables of clustered federated learning: cells, mean uplift and forms, by hand."""

import csv
import io

import pytest

from knot_runner.papers.fedwad.clustered_table import clustered_frame, grid_columns
from knot_runner.report import paper_tables
from knot_runner.report.render.markup import table_csv, table_latex, table_markdown
from knot_runner.report.render.terminal import TerminalTable
from knot_runner.report.run_folders import Job, load_runs
from tests.golden.messages import refuses
from tests.unit.report import clustered_runs
from tests.unit.report.clustered_runs import build, cell, job, said, write
from tests.unit.report.made_runs import shown

ROW, UPLIFT = ("MNIST", "FedAvg", "20"), ("MNIST", "mean uplift", "")


@pytest.fixture
def two_seeds(tmp_path):
    return clustered_runs.two_seeds(tmp_path)


@pytest.fixture
def whole(tmp_path):
    return clustered_runs.whole(tmp_path)


def test_cells_show_percent_means_beside_paper(two_seeds):
    table = build(two_seeds)
    found, by_images = (cell(table, ROW, "strong_affinity_S10", over) for over in ("clusters", "weighted"))
    # 90 and 98: spread 5.6569, t(1 d.f.) = 12.7062: 12.7062 * 5.6569 / sqrt(2) = 50.825
    assert found.mean == pytest.approx(94) and found.half == pytest.approx(50.825, abs=1e-3)
    assert (found.paper, found.paper_std, found.n, found.planned) == (99.5, 0.0, 2, 2)
    assert by_images.mean == pytest.approx(85) and by_images.paper is None  # which stands beside its own weighting
    assert cell(table, ROW, "strong_vanilla").paper == 26.3
    assert [block[0].block for block in table.blocks()] == [
        "strong structure: accuracy in percent, mean over clusters; within a cluster, clients weighted by test images",
        "strong structure: accuracy in percent, mean over clients, weighted by test images",
    ]


def test_clustered_table_omits_gap_for_undersized_data(tmp_path, two_seeds):
    few = build(two_seeds)
    full = build([write(job(tmp_path / "full", graph), 0.5, train=60_000) for graph in ("none", "affinity")])
    assert any(
        x.startswith("MNIST: this task has 20,000 training images and 10 classes, the paper's") for x in few.lines
    )
    assert cell(few, ROW, "strong_affinity_S10").gap is None
    assert cell(full, ROW, "strong_affinity_S10").gap == pytest.approx(50 - 99.5)


def test_vanilla_run_counts_once_across_supports(tmp_path):
    jobs = [job(tmp_path, graph, support=support) for support in (10, 100) for graph in ("none", "affinity")]
    table = build([write(one, 0.5) for one in jobs])
    columns = [group.columns for group in table.groups[:2]]
    assert columns == [("strong_vanilla", "strong_affinity_S10"), ("strong_affinity_S100",)]
    assert cell(table, ROW, "strong_vanilla").planned == 1


def test_clustered_frame_keeps_paper_order(tmp_path):
    jobs = [
        write(job(tmp_path, graph, 0, clients, support, kind, method), 0.5)
        for method in ("clustered_fedper", "clustered_fedavg")
        for clients in (100, 20)
        for kind in ("shards", "iid", "pairs")
        for graph, support in (("sparse10", 10), ("sparse5", 10), ("affinity", 100), ("affinity", 10), ("none", 10))
    ]
    found = clustered_frame(load_runs(jobs), {}, paper_tables.read_printed("fedwad/table1").algorithms)
    lines = found[["algorithm", "clients"]].drop_duplicates().itertuples(index=False, name=None)
    assert list(lines) == [("FedAvg", 20), ("FedAvg", 100), ("FedPer", 20), ("FedPer", 100)]
    heads = ["vanilla", "affinity 10", "sparse5 10", "sparse10 10", "affinity 100"]
    places = [(place.structure, place.head) for place in grid_columns(found)]
    assert places == [(structure, head) for structure in ("strong", "none", "iid") for head in heads]


def test_run_without_clusters_is_vanilla_by_images(tmp_path):
    plain = job(tmp_path, "none", method="fedavg")
    means = {"weighted": 0.25, "unweighted": 0.3}
    metrics = {**{m: {"ALL": 0.5} for m in ("accuracy", "f1", "loss", "tempered_loss")}, "client_accuracy": means}
    write(plain, 0.0, metrics=metrics)
    plain.config["method"]["clustering"] = None
    assert cell(build([plain], None), ("mnist, mlp_fedrep", "fedavg", "20"), "strong_vanilla").mean == 25


def test_clustered_table_omits_paper_numbers_for_other_settings(tmp_path):
    places = [(graph, f"method.temperature={t}") for graph in ("none", "affinity") for t in (1, 0.5)]
    table = build([write(job(tmp_path, graph, label=label), 0.5) for graph, label in places])
    assert table.heads[-1] == "settings"
    assert cell(table, (*ROW, "method.temperature=0.5"), "strong_affinity_S10").paper is None


def test_mean_uplift_averages_all_rows_like_paper(whole, tmp_path):
    table = build(whole)
    theirs = paper_tables.read_printed("fedwad/table2").uplift["MNIST"]
    found = cell(table, UPLIFT, "strong_affinity_S10")
    assert (found.mean, found.std) == pytest.approx(theirs[1], abs=0.11)
    assert (found.paper, found.paper_std) == tuple(theirs[1]) and (found.n, found.half) == (2, None)
    assert cell(table, UPLIFT, "strong_vanilla").mean is None
    jobs = [write(job(tmp_path, graph), accuracy) for graph, accuracy in (("none", 0.0), ("affinity", 0.5))]
    one = cell(build(jobs, None), ("mnist, mlp_fedrep", "mean uplift", ""), "strong_affinity_S10")
    assert (one.mean, one.std) == (50, None)  # of one row there is no deviation; 0 is a number


def test_mean_uplift_needs_every_row(whole):
    for one in whole[:2]:
        (one.folder / "result.json").unlink()
    table = build(whole)
    assert cell(table, UPLIFT, "strong_affinity_S10").mean is None
    assert said(table, "MNIST FedAvg N=10") == "MNIST FedAvg N=10: 12 of 14 runs are finished (seed 0, 1 not run yet)."


def test_run_that_fits_no_row_is_refused(tmp_path):
    natural, probe = write(job(tmp_path, "none", kind="natural"), 0.5), write(job(tmp_path, "affinity"), 0.5)
    natural.config["partition"]["num_clients"] = None
    del probe.config["method"]["clustering"]
    for jobs, more in (([natural], {}), ([probe], {}), ([natural], {"metrics": ["cluster"]})):
        with refuses():
            build(jobs, **more)


def test_clustered_frame_refuses_two_runs_per_cell(tmp_path):
    one = write(job(tmp_path, "affinity"), 0.5)
    other = write(Job(**{**vars(one), "run_id": "x"}), 0.5)
    with pytest.raises(ValueError, match="two runs share mnist, mlp_fedrep"):
        clustered_frame(load_runs([one, other]), {}, {})


@pytest.mark.parametrize(("width", "grids"), [(80, 4), (100, 4), (120, 2)])
def test_table_of_seven_columns_fits(whole, width, grids):
    text = shown(TerminalTable(build(whole)), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("data set") for line in lines) == grids  # both weightings, in two parts where narrow
    assert "(26.3±3.8)" in text and "(29.8±28.4)" in text and "nan" not in text


def test_table_in_every_form_has_standard_deviations(two_seeds):
    table = build(two_seeds)
    rows, markdown, latex = (
        list(csv.DictReader(io.StringIO(table_csv(table)))),
        table_markdown(table),
        table_latex(table),
    )
    place = ("data set", "algorithm", "clients", "column", "metric", "mean", "paper", "paper_std", "std")
    first = ["MNIST", "FedAvg", "20", "strong_vanilla", "accuracy_clusters_percent", "22", "26.3", "3.8", ""]
    assert [rows[0][key] for key in place] == first and len(rows) == 2 * 2 * 2
    assert "| data set | algorithm | clients | vanilla | affinity 10 |" in markdown
    assert "| MNIST | FedAvg | 20 | 22.0 \\[0, 47.4\\] (26.3±3.8) | 94.0 \\[43.2, 100\\] (99.5±0.0) |" in markdown
    assert r"(26.3$\pm$3.8)" in latex and "±" not in latex
