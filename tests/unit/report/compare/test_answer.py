"""``knot-runner compare`` from run folders to the table: groups, means, states and best-of."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from knot_runner.cli.parsers import run_verb
from knot_runner.report.statistics.intervals import MeanEstimate
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.report.compared import ask, begun, column, diverged, failed, heads, made, text, three_temperatures


@pytest.fixture
def grid(tmp_path):
    return three_temperatures(tmp_path)


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


AUCS = (0.9, 0.99)


def t_interval(values: Any) -> tuple[float, float]:
    low, high = stats.t.interval(0.95, len(values) - 1, sum(values) / len(values), stats.sem(values))
    return float(low), float(high)


def test_compare_cuts_the_interval_of_an_auc_at_1(tmp_path: Path) -> None:
    for seed, value in enumerate(AUCS):
        made(tmp_path, 0.5, {"took": {"auc": value, "seconds": value}}, seed=seed)
    sheet = ask(tmp_path, measures=("took.auc", "took.seconds"))
    auc, seconds = (cell for cell, head in zip(sheet.rows[0], heads(sheet), strict=True) if head.startswith("took."))
    low, high = t_interval(AUCS)
    assert high > 1 and auc.band == (pytest.approx(low), 1.0)
    assert seconds.band == (pytest.approx(low), pytest.approx(high))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["task=mnits"], "task=mnits: none of 9 runs is so; task.name is mnist"),
        (["method.temprature=1"], "did you mean 'method.temperature'"),
        (["seed=0", "training.lr>1"], "training.lr>1: none of 3 runs is so; training.lr is 0.01"),
        (["--by=tsk"], "did you mean 'task'"),
        (["--measure=acc"], "no result has it"),
        (["--mesure=f1"], "did you mean '--measure'"),
        (["--best=accuracy"], "the runs differ in method.temperature"),
        (["--best=best.round", "--over=method.temperature"], "--best=max:best.round or --best=min:best.round"),
        (["--best=top:f1", "--over=method.temperature"], "min:KEY or max:KEY"),
        (["--best=f1", "--over=training.lr"], "in no row is there more than one value"),
        (["--best=f1", "--over=seed"], "means are over seeds"),
        (["--over=method"], "--over: needs --best=MEASURE"),
        (["--by"], "--by: expected one argument"),
        (["--export=t.xlsx"], ".csv, .tex or .md"),
        (["--sort=loss"], "--sort=loss: is not shown"),
        (["chill/table1"], "is neither a filter"),
        (["-m"], "-m: unknown option"),
    ],
)
def test_mistakes_are_one_line(grid, arguments, said):
    with pytest.raises(UserError) as problem:
        run_verb("compare", [f"paths.out={grid}", *arguments])
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_no_runs(tmp_path):
    with refuses():
        ask(tmp_path / "none")
    with refuses():
        ask(tmp_path)
    begun(tmp_path)
    assert ask(tmp_path).rows == ((0, 1),)


def test_an_asked_value_that_no_run_has_is_said(grid):
    assert "seed=0,7: no run has 7; seed is 0, 1, 2." in ask(grid, "seed=0,7").lines


def test_foreign_and_damaged_folders_are_named(grid):
    (grid / "mnist" / "fedavg_chill" / "x" / "config.yaml").parent.mkdir()
    (grid / "mnist" / "fedavg_chill" / "x" / "config.yaml").write_text("a: &b [*b]\n")
    other = begun(grid, task__name="cifar10")
    other.rename(grid / "mnist" / "fedavg_chill" / "moved")
    lone = grid / "a" / "b" / "c"
    lone.mkdir(parents=True)
    (lone / "result.json").write_text("{}")
    early = failed(grid, seed=21)
    (early / "config.yaml").unlink()
    pipe = begun(grid, seed=20)
    os.mkfifo(pipe / "result.json")
    (grid / "tables").mkdir()
    (grid / "artefacts" / "vectors" / "00").mkdir(parents=True)
    sheet = ask(grid)
    assert column(sheet, 1) == [3, 3, 3]
    assert "folders that are not runs: a/b/c (no config.yaml)" in text(sheet) and "1 more" in text(sheet)


@pytest.mark.thorough
def test_bits_turned_and_files_cut_never_give_a_wrong_number(grid):
    """Whatever happens to a file, the run is left out, or said to be doubtful, or has its own number."""
    folder = made(grid, 0.123456, method__temperature=16)
    chance = random.Random(0)
    for name in ("result.json", "config.yaml"):
        whole = (folder / name).read_bytes()
        for i in range(60):
            bad = bytearray(whole)
            if i % 3:
                bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            else:
                bad = bad[: chance.randrange(len(bad))]
            (folder / name).write_bytes(bytes(bad))
            sheet = ask(grid, by=("method.temperature",), measures=("accuracy",))
            place = heads(sheet).index("accuracy")
            found = [row for row in sheet.rows if row[place] and abs(row[place].mean - 0.123456) < 1e-12]
            doubtful = "Left out" in text(sheet)
            assert doubtful or (len(found) == 1 and found[0][0] == "16"), (name, i)
            others = {row[0]: row[place].mean for row in sheet.rows if row[0] in ("0.05", "1", "4")}
            assert doubtful or others == pytest.approx({"0.05": 0.72, "1": 0.62, "4": 0.52})
        (folder / name).write_bytes(whole)
