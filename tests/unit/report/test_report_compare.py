"""``knot-runner compare`` from run folders to the table: groups, means, states, best-of, and what is said of them."""

import numpy as np
import pytest
from scipy import stats

from knot_runner.report.statistics.intervals import MeanEstimate
from tests.unit.report.compared import ask, begun, column, diverged, failed, heads, made, text, three_temperatures


@pytest.fixture
def grid(tmp_path):
    return three_temperatures(tmp_path)


# -------------------------------------------------------------------------------------------------------------- groups


def test_grouped_by_what_differs_with_the_interval_of_scipy(grid):
    sheet = ask(grid)
    assert heads(sheet) == ["temperature", "n", "accuracy", "f1"]
    assert column(sheet, 0) == ["0.05", "1", "4"] and column(sheet, 1) == [3, 3, 3]
    values = 0.7 + 0.02 * np.arange(3)
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    found = sheet.rows[0][2]
    assert isinstance(found, MeanEstimate) and found.n == 3
    np.testing.assert_allclose([found.mean, found.half], [values.mean(), (high - low) / 2], rtol=1e-12)
    assert "differ" not in text(sheet)


def test_filters_and_measures(grid):
    sheet = ask(grid, "method=fedavg_chill", "method.temperature<=1", "seed=0,2", measures=("seconds", "best.accuracy"))
    assert heads(sheet) == ["temperature", "n", "seconds.total", "best.accuracy"]
    assert [row[2].mean for row in sheet.rows] == [11.0, 11.0]
    assert [round(row[3].mean, 9) for row in sheet.rows] == [0.72, 0.62]


def test_what_is_averaged_over_is_said(grid):
    made(grid, 0.9, seed=0, training__rounds=5)
    sheet = ask(grid, by=("method.name",))
    assert sheet.rows[0][1] == 10
    assert "runs that differ in method.temperature (0.05, 1, 4), training.rounds (3, 5)" in text(sheet)
    assert "a seed counts more than once" in text(sheet)


def test_what_goes_along_with_the_groups_is_said(tmp_path):
    made(tmp_path, 0.5, method__temperature=1, training__rounds=3)
    made(tmp_path, 0.6, method__temperature=2, training__rounds=9)
    sheet = ask(tmp_path, by=("method.temperature",))
    assert "Rows differ in training.rounds (3, 9), too." in sheet.lines


def test_other_data_is_said(tmp_path):
    made(tmp_path, 0.5, {"data": "a"}, seed=0)
    made(tmp_path, 0.6, {"data": "b"}, seed=0, training__rounds=4)
    assert "Runs of one task were made from different data" in text(ask(tmp_path))


def test_unequal_seeds_are_said(grid):
    made(grid, 0.5, method__temperature=1, seed=7)
    assert "Rows do not rest on the same seeds: 0,1,2 (2); 0,1,2,7 (1)." in ask(grid).lines


def test_a_setting_that_is_not_used_does_not_part_runs(tmp_path):
    """At T=1 the rate control does nothing, so such runs go with those that have none."""
    made(tmp_path, 0.5, method__temperature=1, method__lr_control=True, seed=0)
    made(tmp_path, 0.6, method__temperature=1, method__lr_control=False, seed=1)
    sheet = ask(tmp_path)
    assert column(sheet, 0) == [2] and "differ" not in text(sheet)


def test_states_are_counted_and_have_no_number(grid):
    diverged(grid, method__temperature=8, seed=0)
    failed(grid, method__temperature=8, seed=1)
    begun(grid, method__temperature=8, seed=2)
    (made(grid, 0.9, method__temperature=8, seed=3) / "result.json").write_text('{"status": "done"')
    sheet = ask(grid)
    assert heads(sheet)[:6] == ["temperature", "n", "div.", "failed", "damaged", "unfinished"]
    assert sheet.rows[-1] == ("8", 0, 1, 1, 1, 1, None, None)
    assert "1 damaged results" in text(sheet) and "9 finished of 13 runs" in sheet.title
    assert ask(grid, "status=diverged,failed").rows == ((0, 1, 1),)


def test_some_without_a_number(grid):
    made(grid, 0.5, {"target": 0.4, "rounds_to_target": 2}, method__temperature=1, seed=5)
    sheet = ask(grid, measures=("rounds_to_target",))
    assert column(sheet, 2) == [None, MeanEstimate(2.0, None, 1), None]
    assert "9 of 10 finished runs have none (target not reached, or none set)" in text(sheet)


def test_one_row_per_run(grid):
    begun(grid, method__temperature=1, seed=9)
    sheet = ask(grid, "method.temperature=1", by=("run_id", "seed", "status"), sort="accuracy")
    assert heads(sheet) == ["run_id", "seed", "status", "n", "unfinished", "accuracy", "f1"]
    assert column(sheet, 1) == ["2", "1", "0", "9"] and "seeds" not in text(sheet)
    assert [cell and cell.mean for cell in column(sheet, 5)] == pytest.approx([0.64, 0.62, 0.6, None])


@pytest.mark.parametrize(
    ("by", "order"), [("accuracy", "2 3 1"), ("loss", "2 3 1"), ("best.round", "3 2 1"), ("temperature", "1 2 3")]
)
def test_sorted(tmp_path, by, order):
    for temperature, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        best = {"best": {"accuracy": accuracy, "round": temperature}}
        made(tmp_path, accuracy, best, method__temperature=temperature)
    assert column(ask(tmp_path, sort=by, measures=("accuracy", "loss", "best.round")), 0) == order.split()


# ---------------------------------------------------------------------------------------------------------------- best


def test_the_best_setting_and_its_rule(grid):
    sheet = ask(grid, best="accuracy", over=("method.temperature",))
    assert sheet.rows[0][:3] == ("0.05", 3, 3) and sheet.rows[0][3].mean == pytest.approx(0.72)
    assert "of 3 settings of method.temperature, the one with the highest mean of accuracy" in text(sheet)
    assert "optimistic" in text(sheet)
    assert ask(grid, best="loss", over=("method.temperature",)).rows[0][0] == "0.05"
    assert ask(grid, best="min:accuracy", over=("method.temperature",)).rows[0][0] == "4"
    assert ask(grid, best="accuracy", by=()).rows[0][0] == "0.05"


def test_the_best_of_each_row(grid):
    for seed in range(3):
        made(grid, 0.8, method__temperature=4, seed=seed, method__name="fedprox", method__algorithm="fedprox")
    sheet = ask(grid, best="accuracy", over=("method.temperature",))
    assert [row[:4] for row in sheet.rows] == [("fedavg_chill", "0.05", 3, 3), ("fedprox", "4", 3, 1)]
    assert column(ask(grid, best="accuracy", over=("method",)), 0) == ["fedprox"]


def test_a_setting_with_a_seed_that_has_no_number_cannot_be_chosen(grid):
    diverged(grid, method__temperature=0.01, seed=0)
    for seed in (1, 2):
        made(grid, 0.99, method__temperature=0.01, seed=seed)
    sheet = ask(grid, best="accuracy", over=("method.temperature",))
    assert sheet.rows[0][:3] == ("0.05", 3, 4) and "1 settings could not be chosen" in text(sheet)


def test_more_seeds_of_one_setting_change_nothing(grid):
    made(grid, 0.01, method__temperature=0.05, seed=9)
    sheet = ask(grid, best="accuracy", over=("method.temperature",))
    assert sheet.rows[0][:3] == ("0.05", 3, 3) and sheet.rows[0][3].mean == pytest.approx(0.72)
