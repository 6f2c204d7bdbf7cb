"""Rows of baselines under a table of methods, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.report.tables.build import build_table

TEACHERS = {
    "MELD": {"f1": 0.2, "accuracy": 0.3, "sd": 0.9},
    "DyDa2": {"f1": 0.5, "accuracy": 0.6, "sd": 0.4},
    "ensemble": {"f1": 0.8, "accuracy": 0.7, "sd": 0.1},
}


def moved(by: float) -> dict[str, dict[str, float]]:
    return {name: {metric: value + by for metric, value in row.items()} for name, row in TEACHERS.items()}


@pytest.fixture
def table(factory: Any) -> Any:
    jobs = [factory.made(method, seed=seed, base=0.4 + 0.1 * seed, baselines=moved(0.02 * seed))
            for method in ("entropy_a", "sinkhorn_e") for seed in (0, 1)]  # fmt: skip
    return build_table(jobs, None, ["f1", "sd"], options={"baselines": True})


def cells(table: Any, row: str, metric: str) -> dict[str, float | None]:
    (found,) = (one for one in table.rows if one.keys[0] == row)
    columns = next(group for group in table.groups if group.key == metric).columns
    return {name: cell.mean for name, cell in zip(columns, found.cells[metric], strict=True)}


def test_they_come_last_once_and_are_explained(table: Any) -> None:
    assert [row.keys[0] for row in table.rows] == ["entropy_a", "sinkhorn_e", "Before", "Best teacher", "Ensemble"]
    assert sum(line.startswith("Before: the global model that distillation starts from") for line in table.lines) == 1


def test_before_is_the_global_model_on_every_data_set(table: Any) -> None:
    found = cells(table, "Before", "f1")
    assert found["MELD"] == pytest.approx((0.35 + 0.45) / 2) and found["ALL"] == pytest.approx(0.45)


def test_the_best_teacher_is_the_best_by_each_metric_on_the_global_test_set(table: Any) -> None:
    for metric, wanted in (("f1", 0.51), ("sd", 0.41)):  # of the teachers, means over seeds
        found = cells(table, "Best teacher", metric)
        assert found["DyDa2"] == pytest.approx(wanted)
        assert {value for name, value in found.items() if name != "DyDa2"} == {None}


def test_the_ensemble_is_on_the_global_test_set(table: Any) -> None:
    found = cells(table, "Ensemble", "sd")
    assert found["DyDa2"] == pytest.approx(0.11) and found["ALL"] is None


def test_they_are_asked_for(factory: Any) -> None:
    jobs = [factory.made(baselines=moved(0.0))]
    plain = build_table(jobs, None, ["f1"])
    assert len(plain.rows) == 1 and not any(line.startswith("Before:") for line in plain.lines)
    assert len(build_table([factory.made(seed=1)], None, ["f1"], options={"baselines": True}).rows) == 1  # older runs
