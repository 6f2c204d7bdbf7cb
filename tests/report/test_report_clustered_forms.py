"""FedWaD Tables 1 to 5: the printed numbers, the presets, and a table in every form."""

from __future__ import annotations

import csv
import io
import statistics

import pytest

from knot_runner.report import paper_tables
from knot_runner.report.render.markup import table_csv, table_latex, table_markdown
from knot_runner.report.run_folders import Job
from tests.report.clustered_runs import build

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


# ------------------------------------------------------------------------------------------------------------- presets


# --------------------------------------------------------------------------------------------------------------- forms


def test_csv_has_standard_deviations(two_seeds: list[Job]) -> None:
    rows = list(csv.DictReader(io.StringIO(table_csv(build(two_seeds)))))
    first = rows[0]
    assert (first["data set"], first["algorithm"], first["clients"]) == ("MNIST", "FedAvg", "20")
    assert (first["column"], first["metric"]) == ("strong_vanilla", "accuracy_clusters_percent")
    assert (first["mean"], first["paper"], first["paper_std"], first["std"]) == ("22", "26.3", "3.8", "")
    assert len(rows) == 3 * 2 * 2


def test_markdown_and_latex(two_seeds: list[Job]) -> None:
    table = build(two_seeds)
    assert (
        "| MNIST | FedAvg | 20 | 22.0 \\[0, 47.4\\] (26.3±3.8) | 94.0 \\[43.2, 100\\] (99.5±0.0) |"
        in table_markdown(table)
    )
    assert "| data set | algorithm | clients | vanilla | affinity 10 |" in table_markdown(table)
    latex = table_latex(table)
    assert r"(26.3$\pm$3.8)" in latex and "±" not in latex
