"""The printed effects of claims follow from the tables of the paper."""

import numpy as np
import pytest

from knot_runner.report import paper_tables
from tests.unit.report.claims.test_presets import CLAIMED


@pytest.mark.parametrize("name", ["chill/table1", "chill/table2"])
def test_paper_effects_of_chilling_match_tables(name):
    table = paper_tables.read_printed(name)
    cases = {
        "femnist": "FEMNIST-DNN", "cifar10": "CIFAR10-CNN", "cifar100": "CIFAR100-ResNet18", "iid": "federated iid",
        "centralized": "centralized iid", "['dirichlet', 'dirichlet_clients']": "federated non-iid",
    }  # fmt: skip
    for claim in CLAIMED[name]:
        if claim.paper is None:
            continue
        rows = table.values[cases[str(next(iter(claim.where.values())))]]
        column = table.columns.index(claim.measure)
        values = {t: np.log(row[column]) if claim.logs else row[column] for t, row in rows.items()}
        if claim.trend:
            expected = np.polyfit(np.log2(list(values)), list(values.values()), 1)[0]
        else:
            of, against = (values[side["method.temperature"]] for side in (claim.of, claim.against))
            expected = against - of if claim.logs else of - against
        assert claim.paper == pytest.approx(np.exp(expected) if claim.logs else expected, abs=0.006), claim.text
