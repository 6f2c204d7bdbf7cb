"""The paper's tables as carried over: complete, in range, and true to the rules deduced for ALL."""

from __future__ import annotations

import pytest

from knot_runner.report import paper_tables
from knot_runner.report.render.table_model import METHOD_NAMES

OF_METHODS = ["knot/table2", "knot/table3", "knot/table4"]


@pytest.mark.parametrize("name", OF_METHODS)
def test_eight_methods_and_every_column(name: str) -> None:
    table = paper_tables.read_printed(name)
    assert table["columns"][-1] == "ALL" and table["global"] == table["columns"][-2]
    for rows in table["metrics"].values():
        assert tuple(rows) == METHOD_NAMES
        assert all(len(row) == len(table["columns"]) and all(0 < v < 1 for v in row) for row in rows.values())


@pytest.mark.parametrize("name", OF_METHODS)
def test_sd_of_all_is_the_mean_of_its_columns(name: str) -> None:
    for row in paper_tables.read_printed(name)["metrics"]["sd"].values():
        assert row[-1] == pytest.approx(sum(row[:-1]) / (len(row) - 1), abs=0.0081)


def test_pooled_accuracy_of_all_follows_from_the_test_sizes() -> None:
    table, sizes = paper_tables.read_printed("knot/table4"), paper_tables.read_printed("knot/table1")["datasets"]["nli"]
    weights = [sizes[name]["test"] for name in table["columns"][:-1]]
    for row in table["metrics"]["accuracy"].values():
        pooled = sum(w * v for w, v in zip(weights, row[:-1], strict=True)) / sum(weights)
        assert row[-1] == pytest.approx(pooled, abs=0.0101)


@pytest.mark.parametrize(("name", "metric", "method", "dataset", "value"), [
    ("knot/table2", "f1", "sinkhorn_d", "Food", 0.59), ("knot/table2", "sd", "sinkhorn_e", "ALL", 0.73),
    ("knot/table3", "f1", "entropy_e", "IEMOCAP", 0.36), ("knot/table3", "sd", "sinkhorn_e", "DyDa0", 0.53),
    ("knot/table4", "accuracy", "sinkhorn_a", "SNLI", 0.73), ("knot/table4", "sd", "sinkhorn_d", "SNLI", 0.23),
    ("knot/table4", "f1", "sinkhorn_d", "SNLI", None), ("knot/table4", "sd", "fedavg", "SNLI", None),
    ("knot/table4", "sd", "sinkhorn_d", "Moon", None),
])  # fmt: skip
def test_single_numbers(name: str, metric: str, method: str, dataset: str, value: float | None) -> None:
    assert paper_tables.printed_value(paper_tables.read_printed(name), metric, method, dataset) == value


def test_table_of_locals_keeps_the_printed_slip_and_says_so() -> None:
    table = paper_tables.read_printed("knot/table1")
    assert table["datasets"]["sa"]["Cloths"]["train"] == 19470
    assert any("19,470" in note and "dropped digit" in note for note in table["notes"])
    assert [table["datasets"]["erc"][f"DyDa{i}"]["score"] for i in range(3)] == [0.38, 0.34, 0.40]


def test_bias_shares_sum_to_one() -> None:
    for task, teachers in paper_tables.read_printed("knot/bias")["shares"].items():
        for name, shares in teachers.items():
            assert sum(shares) == pytest.approx(1, abs=0.003), (task, name)
