"""FedWaD Tables 1 to 5: the printed numbers, the presets, and a table in every form."""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.report import paper_tables
from knot_runner.report.render.markup import table_csv, table_latex, table_markdown
from knot_runner.report.run_folders import Job
from knot_runner.report.tables.clustered_grid import GridColumn, GridRow
from tests.unit.report.clustered_runs import build, job, shown, write

TABLES = [f"fedwad/table{number}" for number in range(1, 6)]


# --------------------------------------------------------------------------------------------------- printed numbers


@pytest.mark.parametrize("name", TABLES)
def test_mean_uplifts_follow_from_the_printed_rows(name: str) -> None:
    table = paper_tables.read_printed(name)
    for data, uplift in table["uplift"].items():
        rows = [row for algorithm in table["values"][data].values() for row in algorithm.values()]
        assert len(rows) == (9 if name == "fedwad/table1" else 12)
        for i, (structure, _, _) in enumerate(table["columns"]):
            plain = table["columns"].index([structure, "none", None])
            gains = [row[i][0] - row[plain][0] for row in rows]
            if i == plain:
                assert uplift[i] is None
            else:
                assert [statistics.fmean(gains), statistics.pstdev(gains)] == pytest.approx(uplift[i], abs=0.11)


def test_table_1_is_part_of_the_others() -> None:
    one, rest = paper_tables.read_printed("fedwad/table1"), [paper_tables.read_printed(name) for name in TABLES[1:]]
    for data, algorithms in one["values"].items():
        for algorithm, rows in algorithms.items():
            for clients, cells in rows.items():
                for column, pair in zip(one["columns"], cells, strict=True):
                    of = next(t for t in rest if data in t["values"] and column in t["columns"])
                    assert of["values"][data][algorithm][clients][of["columns"].index(column)] == pair


@pytest.mark.parametrize(
    ("name", "data", "algorithm", "clients", "column", "pair"),
    [
        ("fedwad/table1", "MNIST", "FedAvg", 20, 0, [26.3, 3.8]),
        ("fedwad/table2", "MNIST", "FedRep", 10, 6, [90.5, 6.6]),
        ("fedwad/table3", "MNIST", "FedPer", 100, 6, [86.9, 1.7]),
        ("fedwad/table5", "CIFAR10", "FedAvg", 20, 0, [23.5, 6.9]),
    ],
)
def test_single_numbers(name: str, data: str, algorithm: str, clients: int, column: int, pair: list[float]) -> None:
    assert paper_tables.read_printed(name)["values"][data][algorithm][clients][column] == pair


def test_the_printed_table_can_be_cited() -> None:
    cite = paper_tables.cite(paper_tables.read_printed("fedwad/table2"))
    assert cite == "paper: Federated Wasserstein Distance, arXiv 2310.01973 (ICLR 2024), Table 2"


# ------------------------------------------------------------------------------------------------------------- presets


@pytest.mark.thorough
def test_the_runs_of_table_1_are_those_of_the_others() -> None:
    few = ["method=clustered_fedavg", "partition.clients=20", "seed=0"]
    made = {name: compose_all([f"experiment={name}", *few])[0] for name in TABLES}
    ids = {name: {one.run_id for one in jobs} for name, jobs in made.items()}
    assert len(ids["fedwad/table1"]) == 2 * 2 * 4 and ids["fedwad/table1"] < set().union(*map(ids.get, TABLES[1:]))
    assert len(ids["fedwad/table2"]) == 1 + 3 * 2  # vanilla has no support size
    for one in made["fedwad/table1"]:
        assert (one.method.clustering.otdd.encoder is None) == (one.settings.task.name == "mnist")


# --------------------------------------------------------------------------------------------------------------- forms


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "grids"), [(80, 4), (100, 4), (120, 2)])
def test_a_table_of_seven_columns_fits(whole: list[Job], width: int, grids: int) -> None:
    lines = shown(build(whole), width)
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("data set") for line in lines) == grids  # both weightings, in two parts where narrow
    text = "\n".join(lines)
    assert "(26.3±3.8)" in text and "(29.8±28.4)" in text and "nan" not in text


def test_table_1_fits_80_columns(tmp_path: Path) -> None:
    jobs = [
        write(job(tmp_path, graph, seed, kind=kind, task=task), value + 0.15 * seed)
        for task in ("mnist", "cifar10")
        for kind in ("pairs", "shards")
        for graph, value in (("none", 0.3), ("affinity", 0.8), ("sparse3", 0.7), ("sparse5", 0.6))
        for seed in (0, 1)
    ]
    table = build(jobs, "fedwad/table1")
    assert max(map(len, shown(table, 80))) <= 80
    names = [("FedAvg", "20"), ("mean uplift", "")]
    assert [row.keys for row in table.rows] == [(data, *name) for data in ("MNIST", "CIFAR10") for name in names]
    assert len(table.blocks()) == 4


def test_csv_has_standard_deviations(two_seeds: list[Job]) -> None:
    rows = list(csv.DictReader(io.StringIO(table_csv(build(two_seeds)))))
    first = rows[0]
    assert (first["data set"], first["algorithm"], first["clients"]) == ("MNIST", "FedAvg", "20")
    assert (first["column"], first["metric"]) == ("strong_vanilla", "accuracy_clusters_percent")
    assert (first["mean"], first["paper"], first["paper_std"], first["std"]) == ("22", "26.3", "3.8", "")
    assert len(rows) == 2 * 2 * 2


def test_markdown_and_latex(two_seeds: list[Job]) -> None:
    table = build(two_seeds)
    assert (
        "| MNIST | FedAvg | 20 | 22.0 \\[0, 47.4\\] (26.3±3.8) | 94.0 \\[43.2, 100\\] (99.5±0.0) |"
        in table_markdown(table)
    )
    assert "| data set | algorithm | clients | vanilla | affinity 10 |" in table_markdown(table)
    latex = table_latex(table)
    assert r"(26.3$\pm$3.8)" in latex and "±" not in latex


def test_places_have_names() -> None:
    place = GridColumn("none", "sparse3", 100)
    assert (place.head, place.key, place.vanilla.key) == ("sparse3 100", "none_sparse3_S100", "none_vanilla")
    assert GridRow("MNIST", "FedAvg", 20, "a=1").name == "MNIST FedAvg N=20 (a=1)"
