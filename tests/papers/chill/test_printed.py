"""The tables of FLex&Chill as carried over: every cell by sums, and the rules of their columns."""

import pytest

from knot_runner.report import paper_tables
from tests.papers.sums import sums

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
