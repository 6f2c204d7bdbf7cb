"""Gains over a method, paired by seed, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.report.tables.build import build_table

OPTIONS = {"reference": "entropy_a"}


def teachers(*values: float) -> dict[str, dict[str, float]]:
    rows = {f"teacher {number + 1}": {"f1": value, "sd": 1 - value} for number, value in enumerate(values)}
    return {**rows, "ensemble": {"f1": 0.99, "sd": 0.01}}


def row_of(table: Any, *keys: str) -> Any:
    (found,) = (one for one in table.rows if one.keys == keys)
    return found.cells


def test_gains_are_paired_by_seed(factory: Any) -> None:
    jobs = [
        *(factory.made("entropy_a", seed, base=base) for seed, base in ((0, 0.3), (1, 0.5), (3, 0.9))),
        *(factory.made("sinkhorn_e", seed, base=base) for seed, base in ((1, 0.58), (0, 0.34), (2, 0.1))),
    ]
    table = build_table(jobs, None, ["f1"], kind="gains", options=OPTIONS)
    gain = row_of(table, "sinkhorn_e")["gain"][0]
    assert gain.mean == pytest.approx((4 + 8) / 2) and gain.seeds == 2  # seed 2 and 3 have no pair
    assert row_of(table, "entropy_a")["gain"][0].mean is None
    group = next(one for one in table.groups if one.key == "gain")
    assert group.signed and "less that of entropy_a at the same seed, in points" in group.title


def test_a_label_is_compared_with_its_own_reference(factory: Any) -> None:
    jobs = [
        factory.made(method, 0, label=label, base=base)
        for method, label, base in (
            ("entropy_a", "a", 0.3), ("entropy_a", "b", 0.4), ("sinkhorn_e", "a", 0.5), ("sinkhorn_e", "b", 0.5),
        )
    ]  # fmt: skip
    table = build_table(jobs, None, ["f1"], kind="gains", options=OPTIONS)
    assert row_of(table, "sinkhorn_e", "a")["gain"][0].mean == pytest.approx(20)
    assert row_of(table, "sinkhorn_e", "b")["gain"][0].mean == pytest.approx(10)


@pytest.mark.parametrize("metric, wanted", [("f1", 0.8), ("sd", 0.2)])
def test_the_best_teacher_and_not_the_ensemble(factory: Any, metric: str, wanted: float) -> None:
    jobs = [factory.made("entropy_a"), factory.made("sinkhorn_e", baselines=teachers(0.6, 0.8))]
    table = build_table(jobs, None, [metric], kind="gains", options=OPTIONS)
    assert row_of(table, "sinkhorn_e")["teacher"][0].mean == pytest.approx(wanted)
    assert row_of(table, "entropy_a")["teacher"][0].mean is None
