"""The printed effects of claims follow from the tables of the paper."""

import numpy as np
import pytest

from knot_runner.report import paper_tables
from tests.unit.report.claims.test_presets import CLAIMED


@pytest.mark.parametrize("name", ["knot/table2", "knot/table3", "knot/table4"])
def test_paper_effects_of_knot_match_tables(name):
    table = paper_tables.read_printed(name)
    for claim in CLAIMED[name]:
        if claim.against != "before":
            of, against = (_printed(table, claim.measure, side) for side in (claim.of, claim.against))
            scale = 100 if claim.measure == "accuracy" else 1
            assert claim.paper == pytest.approx(scale * (of - against), abs=1e-9), claim.text


def _printed(table, measure, side):
    """The method's number on ALL, or the mean over the methods with its loss."""
    loss = side.get("method.loss.name")
    methods = [f"{loss}_{weighting}" for weighting in "adue"] if loss else [side["method.name"]]
    return np.mean([paper_tables.printed_value(table, measure, method, "ALL") for method in methods])
