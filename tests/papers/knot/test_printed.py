"""KNOT's tables as carried over: every cell by sums, and the rules of their columns."""

import pytest

from knot_runner.report import paper_tables
from knot_runner.report.render.table_model import METHOD_TITLES
from tests.papers.sums import sums


@pytest.mark.parametrize(("metric", "method", "dataset"), [
    ("f1", "sinkhorn_d", "SNLI"), ("sd", "fedavg", "SNLI"), ("sd", "sinkhorn_d", "Moon"),
])  # fmt: skip
def test_number_that_is_not_printed_is_none(metric, method, dataset):
    assert paper_tables.printed_value(paper_tables.read_printed("knot/table4"), metric, method, dataset) is None


def test_bias_shares_sum_to_one():
    for task, teachers in paper_tables.read_printed("knot/bias").shares.items():
        for name, shares in teachers.items():
            assert sum(shares) == pytest.approx(1, abs=0.003), (task, name)


#: (table, measure) -> columns, sums of the rows in the order of METHOD_TITLES, sums of the columns; in hundredths
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
    assert list(cells) == list(METHOD_TITLES) and sums(list(cells.values()), 100) == (rows, downward)


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
