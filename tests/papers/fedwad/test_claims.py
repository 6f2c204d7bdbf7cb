"""The printed effects of claims follow from the tables of the paper."""

from types import SimpleNamespace

import numpy as np
import pytest

from knot_runner.composing.commands import compose_all
from knot_runner.papers.fedwad.results import DistanceResult
from knot_runner.report import paper_tables
from knot_runner.report.claims.measures import CLAIM_MEASURES
from tests.unit.report.claims.test_presets import CLAIMED


@pytest.mark.parametrize("name", [f"fedwad/table{i}" for i in range(1, 6)])
def test_paper_effects_of_clustering_match_table_means(name):
    """Mean over numbers of clients (and supports) of what the columns differ by."""
    table = paper_tables.read_printed(name)
    for claim in CLAIMED[name]:
        if claim.paper is None:
            continue
        data = "MNIST" if "mnist" in claim.where["task.name"] else "CIFAR10"
        own = claim.where.get("method.name")
        algorithms = [table.algorithms[own]] if own else ["FedAvg", "FedRep", "FedPer"]
        partition = claim.where.get("partition.kind")
        structures = {"pairs": ["strong"], "shards": ["none"]}.get(partition, ["strong", "none"])
        graphs = [side["method.clustering.graph"] for side in (claim.of, claim.against)]
        cells = [(row, s) for a in algorithms for row in table.values[data][a].values() for s in structures]
        of, against = (
            np.mean([row[i][0] for row, s in cells for i, c in enumerate(table.columns) if c[:2] == [s, graph]])
            for graph in graphs
        )
        assert claim.paper == pytest.approx(of - against, abs=0.06), claim.text


TABLES = [f"fedwad/table{number}" for number in range(1, 6)]


def test_fedwad_table_1_reuses_runs_of_other_tables():
    few = ["method=clustered_fedavg", "partition.num_clients=20", "seed=0"]
    made = {name: compose_all([f"experiment={name}", *few])[0] for name in TABLES}
    ids = {name: {one.run_id for one in jobs} for name, jobs in made.items()}
    assert len(ids["fedwad/table1"]) == 2 * 2 * 4 and ids["fedwad/table1"] < set().union(*map(ids.get, TABLES[1:]))
    assert len(ids["fedwad/table2"]) == 1 + 3 * 2  # vanilla has no support size
    for one in made["fedwad/table1"]:
        assert (one.method.clustering.otdd.encoder is None) == (one.settings.task.name == "mnist")


@pytest.mark.parametrize(
    ("value", "exact", "gap"), [(3.0, 4.0, 0.25), (5.0, 4.0, 0.25), (3.0, 0.0, "the exact distance is 0")]
)
def test_gap_is_the_relative_error_of_a_distance(value, exact, gap):
    curve = {"support": [1.0], "values": [value], "sums": [value]}
    result = DistanceResult(
        status="done", task="gaussians", method="fedwad", seed=0, kind="distance", mode="approximate", iterations=1,
        samples=[1, 1], ratio=0.5, dimension=2, value=value, exact=exact, closed_form=exact, **curve,
    )  # fmt: skip
    assert CLAIM_MEASURES["gap"].read(SimpleNamespace(result=result)) == gap
