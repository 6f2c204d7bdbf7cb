"""The notebook's trace."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.report import paper_tables
from knot_runner.report.tables.build import build_table


@pytest.fixture
def mnist(federated: Any) -> list[Any]:
    of_job = {"task": "mnist", "model": ("mlp_notebook", "mlp"), "partition": "dirichlet"}
    accuracies = [round(i / 100, 2) for i in range(1, 51)]
    return [federated.write(federated.job(t, **of_job), accuracies, classes=10) for t in (4.0, 0.25)]


def test_trace_counts_rounds_from_1_as_the_notebook_does(mnist: list[Any]) -> None:
    table = build_table(mnist, "chill/mnist_notebook", ["accuracy"], kind="trace")
    accuracy, loss = table.groups
    assert accuracy.columns == ("acc r1", "acc r10", "acc r20", "acc r30", "acc r40", "acc r50")
    assert loss.columns == ("loss r50",)
    found = [(c.mean, c.paper) for c in table.rows[0].cells["accuracy"]]
    assert found[:2] == [(pytest.approx(1), 4.97), (pytest.approx(10), 21.93)]
    assert table.rows[1].cells["accuracy"][-1].gap == pytest.approx(50 - 92.02)
    assert table.rows[0].cells["loss"][0].mean == pytest.approx(2.5)
    assert len(table.blocks()) == 1 and any("notebook" in line for line in table.lines)


def test_trace_of_a_shorter_run_leaves_its_columns_empty(federated: Any, mnist: list[Any]) -> None:
    job = federated.job(1.0, task="mnist", model=("mlp_notebook", "mlp"))
    federated.write(job, [0.5] * 12, classes=10)
    table = build_table([*mnist, job], "chill/mnist_notebook", [], kind="trace")
    assert [c.mean for c in table.rows[1].cells["accuracy"]] == [50, 50, None, None, None, None]


def test_printed_tables_keep_the_papers_arithmetic() -> None:
    """Deltas and speed-ups follow from accuracies and rounds, but for the two slips and rounding."""
    table = paper_tables.read_printed("chill/table1")
    wrong = []
    for case, rows in table["values"].items():
        accuracy, _, _, rounds, _ = rows[1.0]
        for t, row in rows.items():
            wrong += [(case, t, "delta")] if abs(row[0] - accuracy - row[1]) > 0.0151 else []
            wrong += [(case, t, "speedup")] if abs(rounds / row[3] - row[4]) > 0.0101 else []
    assert wrong == [("CIFAR100-ResNet18", 0.05, "delta"), ("CIFAR100-ResNet18", 0.05, "speedup")]
