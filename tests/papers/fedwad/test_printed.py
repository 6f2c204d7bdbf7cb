"""The tables of FedWaD as carried over: every cell by sums, and the rules of their columns."""

import statistics

import numpy as np
import pytest

from knot_runner.report import paper_tables
from tests.papers.sums import sums

#: table -> data sets, numbers of clients, sums of the rows and of the columns (mean, deviation, mean, ...) in tenths
CLUSTERED_CELLS = {
    "fedwad/table1": ("MNIST CIFAR10", [20, 40, 100],
        [5651, 6143, 6316, 7464, 7455, 7635, 7783, 7733, 7812, 4271, 4240, 3591, 7043, 6859, 6444, 7249, 7102, 6840],
        [12197, 759, 16153, 310, 14822, 629, 15100, 627, 12260, 672, 15093, 990, 13327, 707, 13249, 736]),
    "fedwad/table2": ("MNIST", [10, 20, 40, 100],
        [6037, 6324, 6468, 6438, 6807, 6844, 6969, 6885, 6898, 6957, 6994, 6917],
        [8325, 706, 11904, 4, 11904, 5, 11590, 352, 11798, 145, 11523, 450, 11633, 199]),
    "fedwad/table3": ("MNIST", [10, 20, 40, 100],
        [5147, 4385, 4821, 5012, 6451, 6322, 6048, 6411, 6914, 6732, 6513, 6685],
        [7957, 679, 10226, 624, 10156, 629, 9845, 590, 9739, 641, 9655, 555, 9676, 469]),
    "fedwad/table4": ("CIFAR10", [10, 20, 40, 100],
        [4874, 4292, 4180, 3848, 6335, 6080, 5886, 5482, 6465, 6305, 6132, 5876],
        [7472, 267, 9869, 392, 9804, 374, 8502, 481, 8963, 658, 8903, 470, 9069, 531]),
    "fedwad/table5": ("CIFAR10", [10, 20, 40, 100],
        [4806, 3973, 3647, 2940, 6443, 6350, 6204, 5873, 6525, 6462, 6341, 6147],
        [7716, 262, 10104, 615, 10087, 538, 8716, 346, 8751, 361, 8811, 363, 8723, 318]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERED_CELLS)
def test_cells_of_fedwad_tables(name):
    table, (datasets, clients, *expected) = paper_tables.read_printed(name), CLUSTERED_CELLS[name]
    cells = [
        table.values[data][algorithm][count]
        for data in datasets.split()
        for algorithm in ("FedAvg", "FedRep", "FedPer")
        for count in clients
    ]
    assert sums([np.ravel(row).tolist() for row in cells], 10) == tuple(expected)


@pytest.mark.parametrize("name", CLUSTERED_CELLS)
def test_mean_uplifts_follow_from_the_printed_rows(name):
    table = paper_tables.read_printed(name)
    for data, uplift in table.uplift.items():
        rows = [row for algorithm in table.values[data].values() for row in algorithm.values()]
        assert len(rows) == (9 if name == "fedwad/table1" else 12)
        for i, (structure, _, _) in enumerate(table.columns):
            plain = table.columns.index([structure, "none", None])
            gains = [row[i][0] - row[plain][0] for row in rows]
            if i == plain:
                assert uplift[i] is None
            else:
                assert [statistics.fmean(gains), statistics.pstdev(gains)] == pytest.approx(uplift[i], abs=0.11)
