"""Rounds, speed-ups, deltas and rate controls worked out by hand, pairs by seed."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.metrics import rounds_to_target
from knot_runner.report.render.text import value_text
from tests.unit.report.chilled import build, cell
from tests.unit.report.claimed import rewrite


def test_rounds_are_rounds_trained_and_targets_are_paired_by_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("4",), "rounds").mean == pytest.approx((8 + 2) / 2)  # T=4 reaches its own best
    assert cell(table, ("1",), "rounds").mean == pytest.approx((7 + 4) / 2)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx(3)
    assert "rounds: rounds trained until the target is met" in " ".join(table.lines)


def test_the_papers_rounds_stay_as_printed_and_gaps_count_alike(federated: Any) -> None:
    """It prints 299 for T=4, the index of the last of 300 rounds: trained rounds are one more."""
    jobs = [federated.made(4.0, [0.1, 0.2, 0.4], seed=seed) for seed in (0, 1)]
    for job in jobs:  # of the paper's size, so that there is a gap
        rewrite(job.folder, datasets={"train": 157_132, "test": 200})
    found = cell(build(jobs), ("4",), "rounds")
    assert (found.mean, found.paper, found.gap) == (3, 299, 3 - 300)


def test_the_speedup_is_the_mean_of_ratios_per_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("0.05",), "speedup").mean == pytest.approx((7 / 3 + 4 / 3) / 2)
    assert cell(table, ("4",), "speedup").mean == pytest.approx((7 / 8 + 4 / 2) / 2)
    assert (cell(table, ("1",), "speedup").mean, cell(table, ("1",), "speedup").half) == (1, 0)


def test_deltas_are_in_points_and_paired(trio: list[Any]) -> None:
    found = cell(build(trio), ("0.05",), "delta")
    # +10 and +20 points: spread 7.0711, t(1 d.f.) = 12.7062: 12.7062 * 7.0711 / sqrt(2) = 63.531
    assert found.mean == pytest.approx(15) and found.half == pytest.approx(63.531, abs=1e-3)
    assert cell(build(trio), ("1",), "delta").mean == 0


def test_cells_as_printed_have_a_sign_where_they_are_a_difference(trio: list[Any]) -> None:
    table = build(trio)
    wanted = {
        "4": ("25.00", "-20.00", "2.750", "1.750", "5.0", "1.44"),
        "0.05": ("60.00", "+15.00", "2.400", "1.400", "3.0", "1.83"),
    }
    heads = ("accuracy", "vs T=1", "loss at T", "loss", "rounds", "speed-up")
    for key, values in wanted.items():
        (row,) = (row for row in table.rows if row.keys == (key,))
        printed = {group.head: value_text(row.cells[group.key][0], group) for group in table.groups}
        assert printed == dict(zip(heads, values, strict=True))


def test_accuracy_is_of_the_last_round(trio: list[Any]) -> None:
    assert cell(build(trio), ("0.05",), "accuracy").mean == pytest.approx(60)


def test_both_losses_stand_side_by_side(trio: list[Any]) -> None:
    table = build(trio, ["loss", "plain_loss"])
    assert [group.metric for group in table.groups] == ["loss", "plain_loss"]
    assert (cell(table, ("1",), "loss").mean, cell(table, ("1",), "plain_loss").mean) == (2.55, 1.55)
    assert not any("target" in line for line in table.lines)


def test_a_number_is_a_target_of_its_own(trio: list[Any]) -> None:
    table = build(trio, target=0.5)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx((4 + 3) / 2)
    assert "Target: accuracy 50%." in " ".join(table.lines)


def test_targets_not_reached_are_shown_said_and_in_no_mean(federated: Any) -> None:
    rows = {4.0: [[0.2, 0.4]] * 3, 1.0: [[0.3, 0.4], [0.1, 0.1], [0.1, 0.2]], 0.5: [[0.1, 0.1]] * 3}
    jobs = [federated.made(t, accs, seed=seed) for t, three in rows.items() for seed, accs in enumerate(three)]
    table = build(jobs)
    some, none = cell(table, ("1",), "rounds"), cell(table, ("0.5",), "rounds")
    assert (some.text, some.mean, some.seeds, some.planned) == (">2 (2 of 3)", 2, 1, 3)
    assert (none.text, none.mean) == (">2", None)
    assert cell(table, ("0.5",), "speedup").mean is None
    assert "FEMNIST-DNN: target not reached within 2 rounds: T=1, seed 1, 2; T=0.5, seed 0, 1, 2." in table.lines


def test_a_target_met_in_the_first_round_takes_one_round(federated: Any) -> None:
    jobs = [federated.made(t, accs) for t, accs in ((4.0, [0.1, 0.4]), (1.0, [0.1, 0.4]), (0.05, [0.5, 0.5]))]
    table = build(jobs)
    assert (cell(table, ("0.05",), "rounds").mean, cell(table, ("0.05",), "speedup").mean) == (1, 2)


@pytest.mark.parametrize(("accuracy", "rounds"), [(0.4, 1), (0.3999, 3), (0.4001, 1)])
def test_a_target_met_exactly_counts(accuracy: float, rounds: int) -> None:
    assert rounds_to_target([(1, accuracy), (2, 0.1), (3, 0.9)], 0.4) == rounds


def test_without_its_t4_run_a_seed_has_no_target(federated: Any, trio: list[Any]) -> None:
    table = build([*trio, federated.made(0.05, [0.9, 0.9], seed=2)])
    assert cell(table, ("0.05",), "rounds").seeds == 2 and cell(table, ("0.05",), "accuracy").seeds == 3
    assert "FEMNIST-DNN: no target, its T=4 run is not there: T=0.05, seed 2." in table.lines


def test_rounds_that_were_not_measured_are_said(federated: Any) -> None:
    jobs = [federated.write(federated.job(t), [0.1, 0.2, 0.3, 0.4], every=2) for t in (4.0, 1.0)]
    table = build(jobs)
    assert cell(table, ("1",), "rounds").mean == 4
    assert "FEMNIST-DNN: not every round was measured, so rounds are upper bounds." in table.lines


def test_rate_controls_are_rows_of_their_own_below_their_temperature(federated: Any) -> None:
    jobs = [
        federated.made(t, [0.1, 0.4], control=control, label=f"method.temperature={t}, method.lr_control={control}")
        for t in (4.0, 1.0, 0.5, 0.05)
        for control in (False, True)
    ]
    table = build(jobs)
    assert table.heads == ("T", "settings")
    assert [row.keys for row in table.rows] == [
        ("4", ""), ("1", "rate=lr/4"), ("1", ""), ("0.5", ""), ("1", "rate=lr/0.5"), ("0.05", ""), ("1", "rate=lr/0.05")
    ]  # fmt: skip
    assert cell(table, ("1", ""), "accuracy").planned == 1  # the control at T=1 is the T=1 run
    assert cell(table, ("1", "rate=lr/0.05"), "accuracy").paper is None


def test_an_accuracy_has_its_interval_between_0_and_100(federated: Any) -> None:
    table = build([federated.made(1.0, [accuracy], seed=seed) for seed, accuracy in enumerate((0.9, 0.98))])
    found = cell(table, ("1",), "accuracy")
    low = 94 - 12.7062 * 4  # spread 8 / sqrt(2), over two seeds
    assert found.half == pytest.approx(50.8248, abs=1e-3) and found.band == (pytest.approx(low, abs=1e-3), 100.0)
    assert cell(table, ("1",), "loss").band[1] > 2  # a loss has no upper end
