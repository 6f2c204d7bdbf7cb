"""The papers' tables as carried over: every cell by sums, and the rules of their columns."""

import statistics

import numpy as np
import pytest

from knot_runner.report import paper_tables
from knot_runner.report.render.table_model import METHOD_NAMES


@pytest.mark.parametrize(("metric", "method", "dataset"), [
    ("f1", "sinkhorn_d", "SNLI"), ("sd", "fedavg", "SNLI"), ("sd", "sinkhorn_d", "Moon"),
])  # fmt: skip
def test_number_that_is_not_printed_is_none(metric, method, dataset):
    assert paper_tables.printed_value(paper_tables.read_printed("knot/table4"), metric, method, dataset) is None


def test_bias_shares_sum_to_one():
    for task, teachers in paper_tables.read_printed("knot/bias").shares.items():
        for name, shares in teachers.items():
            assert sum(shares) == pytest.approx(1, abs=0.003), (task, name)


def sums(rows, unit):
    """Of each row and each column, in whole units: a cell that is off shows in one of each."""
    whole = [[round(value * unit) for value in row] for row in rows]
    return [sum(row) for row in whole], [sum(column) for column in zip(*whole, strict=True)]


#: (table, measure) -> columns, sums of the rows in the order of METHOD_NAMES, sums of the columns; in hundredths
METHODS = {
    ("knot/table2", "f1"): ("Cloths Toys Cell Food ALL", [241, 246, 236, 250, 250, 247, 239, 251],
                            [385, 359, 375, 433, 408]),
    ("knot/table2", "sd"): ("Cloths Toys Cell Food ALL", [398, 389, 412, 374, 376, 378, 408, 364],
                            [607, 674, 602, 595, 621]),
    ("knot/table3", "f1"): ("MELD IEMOCAP DyDa0 DyDa1 DyDa2 ALL", [183, 197, 197, 235, 211, 231, 199, 244],
                            [255, 215, 332, 290, 320, 285]),
    ("knot/table3", "sd"): ("MELD IEMOCAP DyDa0 DyDa1 DyDa2 ALL", [380, 372, 383, 371, 381, 365, 391, 354],
                            [538, 517, 462, 482, 497, 501]),
    ("knot/table4", "accuracy"): ("Fic Gov Slate Tele Trv SNLI ALL", [447, 438, 444, 444, 443, 425, 445, 445],
                                  [473, 489, 471, 473, 482, 627, 516]),
    ("knot/table4", "sd"): ("Fic Gov Slate Tele Trv SNLI ALL", [370, 370, 369, 365, 364, 362, 354, 352],
                            [442, 431, 448, 446, 435, 288, 416]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "measure"), METHODS)
def test_cells_of_knot_tables(name, measure):
    table, (columns, rows, downward) = paper_tables.read_printed(name), METHODS[name, measure]
    assert table.columns == columns.split() and table.global_set == table.columns[-2]
    cells = table.metrics[measure]
    assert tuple(cells) == METHOD_NAMES and sums([cells[method] for method in METHOD_NAMES], 100) == (rows, downward)


TEMPERATURES = [4.0, 2.0, 1.0, 0.5, 0.25, 0.05]
#: (table, case) -> sums in thousandths; Table 1: accuracy, delta, loss, rounds, speed-up; Table 2: accuracy, loss
CHILLED = {
    ("chill/table1", "FEMNIST-DNN"): ([368873, 282129, 212344, 171064, 140320, 111703],
                                      [469600, -2340, 4273, 803000, 11900]),
    ("chill/table1", "CIFAR10-CNN"): ([335384, 311928, 294934, 205811, 180912, 157978],
                                      [248910, 870, 9567, 1219000, 8600]),
    ("chill/table1", "CIFAR100-ResNet18"): ([319524, 319138, 232168, 213285, 189327, 268298],
                                            [171640, 620, 18920, 1345000, 5560]),
    ("chill/table2", "centralized iid"): ([59202, 64311, 66224, 65220, 64972, 62207], [375550, 6586]),
    ("chill/table2", "federated iid"): ([49693, 53303, 55985, 54510, 55905, 49301], [310210, 8487]),
    ("chill/table2", "federated non-iid"): ([39304, 41988, 42934, 43071, 44942, 46238], [248910, 9567]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "case"), CHILLED)
def test_cells_of_chilling_tables(name, case):
    values = paper_tables.read_printed(name).values[case]
    assert sums([values[t] for t in TEMPERATURES], 1000) == CHILLED[name, case]


def test_cells_of_the_notebook():
    """Accuracy after rounds 1, 10, ..., 50, then the loss after 50; in ten-thousandths."""
    values = paper_tables.read_printed("chill/mnist_notebook").values["MNIST"]
    assert sums([values[t] for t in TEMPERATURES[:5]], 10000) == (
        [2055846, 3173182, 4215307, 4632374, 4950655],
        [915400, 2810300, 3504200, 3836400, 3844600, 4081300, 35164],
    )


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


#: training, valid and test texts, and the score in hundredths (KNOT Table 1)
SIZES = {
    "sa": {"Cell": (133574, 19463, 37784, 49), "Cloths": (19470, 28376, 55085, 52),
           "Toys": (116666, 17000, 33000, 49), "Food": (397917, 57982, 112555, 64)},
    "erc": {"IEMOCAP": (3354, 342, 901, 55), "MELD": (9450, 1047, 2492, 45), "DyDa0": (21680, 2013, 1919, 38),
            "DyDa1": (21680, 2013, 1919, 34), "DyDa2": (21680, 2013, 1919, 40)},
    "nli": {"Fic": (77348, 5902, 5903, 63), "Gov": (77350, 5888, 5889, 65), "Slate": (77306, 5893, 5894, 62),
            "Tele": (83348, 5899, 5899, 65), "Trv": (77350, 5904, 5904, 63), "SNLI": (549367, 9842, 9824, 85)},
}  # fmt: skip


@pytest.mark.parametrize("task", SIZES)
def test_cells_of_the_table_of_data(task):
    rows = paper_tables.read_printed("knot/table1").datasets[task]
    found = {
        name: (row["train"], row["valid"], row["test"], round(100 * row["score"]))
        for name, row in rows.items()
        if row["role"] != "transfer"
    }
    assert found == SIZES[task]
    assert paper_tables.read_printed("knot/table1").datasets["sa"]["Grocery"]["train"] == 104817


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
