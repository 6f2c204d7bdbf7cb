"""Rounds, speed-ups, deltas and rate controls worked out by hand, pairs by seed."""

from __future__ import annotations

from typing import Any

import pytest

from knot_runner.report.cases import Setting, grid
from knot_runner.report.chilling import Sweep, course
from knot_runner.report.records_view import load
from knot_runner.report.verdicts import verdicts
from tests.report.chilled import build, cell


def test_rounds_count_from_0_and_targets_are_paired_by_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("4",), "rounds").mean == pytest.approx((7 + 1) / 2)  # T=4 reaches its own best
    assert cell(table, ("1",), "rounds").mean == pytest.approx((6 + 3) / 2)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx(2)


def test_the_speedup_is_the_mean_of_ratios_per_seed(trio: list[Any]) -> None:
    table = build(trio)
    assert cell(table, ("0.05",), "speedup").mean == pytest.approx((6 / 2 + 3 / 2) / 2)
    assert cell(table, ("4",), "speedup").mean == pytest.approx((6 / 7 + 3 / 1) / 2)
    assert (cell(table, ("1",), "speedup").mean, cell(table, ("1",), "speedup").half) == (1, 0)


def test_deltas_are_in_points_and_paired(trio: list[Any]) -> None:
    found = cell(build(trio), ("0.05",), "delta")
    # +10 and +20 points: spread 7.0711, t(1 d.f.) = 12.7062: 12.7062 * 7.0711 / sqrt(2) = 63.531
    assert found.mean == pytest.approx(15) and found.half == pytest.approx(63.531, abs=1e-3)
    assert cell(build(trio), ("1",), "delta").mean == 0


def test_accuracy_is_of_the_last_round_or_of_the_best(trio: list[Any]) -> None:
    assert cell(build(trio), ("0.05",), "accuracy").mean == pytest.approx(60)
    best = build(trio, select="best")
    assert cell(best, ("0.05",), "accuracy").mean == pytest.approx((60 + 90) / 2)
    assert cell(best, ("0.05",), "loss").mean == pytest.approx(3 - 0.75)  # of the same round
    assert "Shown: the round of best accuracy." in " ".join(best.lines)


def test_both_losses_stand_side_by_side_and_only_the_plain_one_is_ranked(trio: list[Any]) -> None:
    table = build(trio, ["loss"])
    assert [group.metric for group in table.groups] == ["loss", "plain_loss"]
    assert [group.better for group in table.groups] == [None, "lower"]
    assert (cell(table, ("1",), "loss").mean, cell(table, ("1",), "plain_loss").mean) == (2.55, 1.55)
    assert not any("target" in line for line in table.lines)


def test_a_number_is_a_target_of_its_own(trio: list[Any]) -> None:
    table = build(trio, target=0.5)
    assert cell(table, ("0.05",), "rounds").mean == pytest.approx((3 + 2) / 2)
    assert "Target: accuracy 50%." in " ".join(table.lines)


def test_targets_not_reached_are_shown_said_and_in_no_mean(federated: Any) -> None:
    rows = {4.0: [[0.2, 0.4]] * 3, 1.0: [[0.3, 0.4], [0.1, 0.1], [0.1, 0.2]], 0.5: [[0.1, 0.1]] * 3}
    jobs = [federated.made(t, accs, seed=seed) for t, three in rows.items() for seed, accs in enumerate(three)]
    table = build(jobs)
    some, none = cell(table, ("1",), "rounds"), cell(table, ("0.5",), "rounds")
    assert (some.text, some.mean, some.seeds, some.planned) == (">1 (2 of 3)", 1, 1, 3)
    assert (none.text, none.mean) == (">1", None)
    assert cell(table, ("0.5",), "speedup").mean is None
    rounds = next(group for group in table.groups if group.metric == "rounds")
    assert table.best(rounds, 0) == set()  # T=4 alone has a mean over all its seeds
    assert "FEMNIST-DNN: target not reached within 2 rounds: T=1, seed 1, 2; T=0.5, seed 0, 1, 2." in table.lines


def test_a_target_in_round_0_has_no_speedup(federated: Any) -> None:
    jobs = [federated.made(t, accs) for t, accs in ((4.0, [0.1, 0.4]), (1.0, [0.1, 0.4]), (0.05, [0.5, 0.5]))]
    table = build(jobs)
    assert (cell(table, ("0.05",), "rounds").mean, cell(table, ("0.05",), "speedup").mean) == (0, None)
    assert "FEMNIST-DNN: target reached in round 0, so there is no speed-up: T=0.05, seed 0." in table.lines


def test_without_its_t4_run_a_seed_has_no_target(federated: Any, trio: list[Any]) -> None:
    table = build([*trio, federated.made(0.05, [0.9, 0.9], seed=2)])
    assert cell(table, ("0.05",), "rounds").seeds == 2 and cell(table, ("0.05",), "accuracy").seeds == 3
    assert "FEMNIST-DNN: no target, its T=4 run is not there: T=0.05, seed 2." in table.lines


def test_rounds_that_were_not_measured_are_said(federated: Any) -> None:
    jobs = [federated.write(federated.job(t), [0.1, 0.2, 0.3, 0.4], every=2) for t in (4.0, 1.0)]
    table = build(jobs)
    assert cell(table, ("1",), "rounds").mean == 3
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


def test_verdicts_in_words(federated: Any) -> None:
    reached = {(4.0, False): (6, 6, 6), (1.0, False): (6, 6, 6), (0.05, False): (2, 2, 2), (0.05, True): (3, 4, 5)}
    jobs = [
        federated.made(t, [0.1] * first + [0.5] * (8 - first), seed=seed, control=control)
        for (t, control), firsts in reached.items()
        for seed, first in enumerate(firsts)
    ]
    lines = build(jobs).lines
    assert "FEMNIST-DNN: T=0.05 reaches the target 3.00 ± .00 times as fast as T=1 (3 seeds)." in lines
    # 1, 2, 3 rounds more: spread 1, t(2 d.f.) = 4.30265: 4.30265 / sqrt(3) = 2.484
    assert (
        "FEMNIST-DNN: T=1 at rate lr/0.05 reaches the target in 4.0 ± 2.5 rounds: +2.0 ± 2.5 against T=0.05 (3 seeds): "
        "undecided, the interval covers no difference."
    ) in lines
    assert any(line.startswith("FEMNIST-DNN: accuracy of T=0.05 less that of T=1: .00 ± .00 points") for line in lines)


def sweep_of(federated: Any, firsts: dict[Setting, tuple[int, ...]]) -> Sweep:
    jobs = [
        federated.made(key.temperature, [0.1] * n + [0.5] * (60 - n), seed=seed, control=key.control)
        for key, rounds in firsts.items()
        for seed, n in enumerate(rounds)
    ]
    rows = grid(load(jobs), {})["femnist, femnist_dnn"]
    return Sweep({key: {s: course(run, "final") for s, run in seeds.items()} for key, seeds in rows.items()}, 0.5)


@pytest.mark.parametrize(
    ("control", "end"),
    [
        ((20, 21), "so T=0.05 is the faster."),
        ((1, 2), "so the larger rate alone is the faster."),
        ((9,), "(1 seed): undecided, one seed has no interval."),
    ],
)
def test_what_the_larger_rate_explains(federated: Any, control: tuple[int, ...], end: str) -> None:
    firsts = {Setting(1.0): (40, 41), Setting(0.05): (10, 11), Setting(0.05, True): control}
    assert end in verdicts("case", sweep_of(federated, firsts), aimed=True)[-1]


def test_no_pair_of_seeds_is_said(federated: Any) -> None:
    firsts = {Setting(1.0): (40,), Setting(0.05): (10,), Setting(0.05, True): (60,)}
    lines = verdicts("case", sweep_of(federated, firsts), aimed=True)
    assert lines[-1] == "case: T=1 at rate lr/0.05 and T=0.05 have no seed in which both reach the target."
