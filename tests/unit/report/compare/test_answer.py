"""``knot-runner compare`` from run folders to the table: groups, means, states and best-of."""

import os
import random

import numpy as np
import pytest
from scipy import stats

from knot_runner.cli.parsers import run_verb
from tests.golden.messages import refuses
from tests.unit.report import compared
from tests.unit.report.compared import ask, begun, cells, column, heads, made, text, three_temperatures


@pytest.fixture
def grid(tmp_path):
    return three_temperatures(tmp_path)


def test_rows_group_differing_settings_with_scipy_intervals(grid):
    table = ask(grid)
    assert heads(table) == ["temperature", "n", "accuracy", "f1"]
    assert column(table, 0) == ["0.05", "1", "4"] and column(table, 1) == [3, 3, 3]
    values = 0.7 + 0.02 * np.arange(3)
    low, high = stats.t.interval(0.95, 2, values.mean(), stats.sem(values))
    found = cells(table)[0][2]
    assert found.n == 3
    np.testing.assert_allclose([found.mean, found.half], [values.mean(), (high - low) / 2], rtol=1e-12)
    assert "differ" not in text(table)


def test_filters_and_measures_choose_runs_and_columns(grid):
    table = ask(grid, "method=fedavg_chill", "method.temperature<=1", "seed=0,2", measures=("seconds", "best.accuracy"))
    assert heads(table) == ["temperature", "n", "seconds.total", "best.accuracy"]
    assert [row[2].mean for row in cells(table)] == [11.0, 11.0]
    assert [round(row[3].mean, 9) for row in cells(table)] == [0.72, 0.62]


@pytest.mark.parametrize(("run", "asked", "lines"), [
    ({"seed": 0, "training__rounds": 5}, {"by": ("method.name",)}, [  # what is averaged over
        "runs that differ in method.temperature (0.05, 1, 4), training.rounds (3, 5)", "a seed counts more than once"]),
    ({"seed": 0, "training__rounds": 9, "method__temperature": 2}, {"by": ("method.temperature",)}, [
        "Rows also differ in training.rounds (3, 9)."]),  # what goes along with the groups
    ({"told": {"data": "b"}, "training__rounds": 4}, {}, ["Runs of one task were run on different data"]),
    ({"seed": 7, "method__temperature": 1}, {}, ["Rows have different seeds: 0,1,2 (2); 0,1,2,7 (1)."]),
])  # fmt: skip
def test_lines_warn_about_hard_to_compare_rows(grid, run, asked, lines):
    made(grid, 0.9, **run)
    assert all(line in text(ask(grid, **asked)) for line in lines)


def test_lines_report_filter_value_without_runs(grid):
    assert "seed=0,7: no run has 7; seed is 0, 1, 2." in ask(grid, "seed=0,7").lines


def test_states_are_counted_and_have_no_number(grid):
    compared.diverged(grid, method__temperature=8, seed=0)
    compared.failed(grid, method__temperature=8, seed=1)
    begun(grid, method__temperature=8, seed=2)
    (made(grid, 0.9, method__temperature=8, seed=3) / "result.json").write_text('{"status": "done"')
    table = ask(grid)
    assert heads(table)[:6] == ["temperature", "n", "div.", "failed", "damaged", "unfinished"]
    assert cells(table)[-1] == ("8", 0, 1, 1, 1, 1, None, None)
    assert "1 damaged results" in text(table) and "9 finished of 13 runs" in table.title
    assert cells(ask(grid, "status=diverged,failed")) == [(0, 1, 1)]


def test_runs_without_a_number_are_counted(grid):
    made(grid, 0.5, {"target": 0.4, "rounds_to_target": 2}, method__temperature=1, seed=5)
    table = ask(grid, measures=("rounds_to_target",))
    none, one, other = column(table, 2)
    assert (none, one.mean, one.half, one.n, one.text, other) == (None, 2.0, None, 1, "2 (1)", None)
    assert "9 of 10 finished runs have none (target not reached, or none set)" in text(table)


def test_rows_are_runs_by_run_id(grid):
    begun(grid, method__temperature=1, seed=9)
    table = ask(grid, "method.temperature=1", by=("run_id", "seed", "status"), sort="accuracy")
    assert heads(table) == ["run_id", "seed", "status", "n", "unfinished", "accuracy", "f1"]
    assert column(table, 1) == ["2", "1", "0", "9"] and "seeds" not in text(table)
    assert [cell and cell.mean for cell in column(table, 5)] == pytest.approx([0.64, 0.62, 0.6, None])


@pytest.mark.parametrize(
    ("by", "order"), [("accuracy", "2 3 1"), ("loss", "2 3 1"), ("best.round", "3 2 1"), ("temperature", "1 2 3")]
)
def test_rows_are_sorted(tmp_path, by, order):
    for temperature, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7)):
        best = {"best": {"accuracy": accuracy, "round": temperature}}
        made(tmp_path, accuracy, best, method__temperature=temperature)
    assert column(ask(tmp_path, sort=by, measures=("accuracy", "loss", "best.round")), 0) == order.split()


def test_best_setting_and_its_rule(grid):
    table = ask(grid, best="accuracy", over=("method.temperature",))
    assert cells(table)[0][:3] == ("0.05", 3, 3) and cells(table)[0][3].mean == pytest.approx(0.72)
    assert "of 3 settings of method.temperature, the one with the highest mean of accuracy" in text(table)
    assert "optimistic" in text(table)
    assert ask(grid, best="loss", over=("method.temperature",)).rows[0].keys[0] == "0.05"
    assert ask(grid, best="min:accuracy", over=("method.temperature",)).rows[0].keys[0] == "4"
    assert ask(grid, best="accuracy", by=()).rows[0].keys[0] == "0.05"


def test_best_setting_of_each_row(grid):
    for seed in range(3):
        made(grid, 0.8, method__temperature=4, seed=seed, method__name="fedprox", method__algorithm="fedprox")
    table = ask(grid, best="accuracy", over=("method.temperature",))
    assert [row[:4] for row in cells(table)] == [("fedavg_chill", "0.05", 3, 3), ("fedprox", "4", 3, 1)]
    assert column(ask(grid, best="accuracy", over=("method",)), 0) == ["fedprox"]


def test_best_setting_uses_seeds_common_to_all(grid):
    compared.diverged(grid, method__temperature=0.01, seed=0)
    for seed in (1, 2):
        made(grid, 0.99, method__temperature=0.01, seed=seed)
    made(grid, 0.01, method__temperature=0.05, seed=9)  # one seed more changes nothing
    table = ask(grid, best="accuracy", over=("method.temperature",))
    assert cells(table)[0][:3] == ("0.05", 3, 4) and "1 settings were not considered" in text(table)
    assert cells(table)[0][3].mean == pytest.approx(0.72)


def test_auc_interval_stops_at_1(tmp_path):
    values = (0.9, 0.99)
    for seed, value in enumerate(values):
        made(tmp_path, 0.5, {"diverged": {"auc": value, "seconds": value}}, seed=seed)
    table = ask(tmp_path, measures=("diverged.auc", "diverged.seconds"))
    auc, seconds = (
        cell for cell, head in zip(cells(table)[0], heads(table), strict=True) if head.startswith("diverged.")
    )
    low, high = stats.t.interval(0.95, 1, np.mean(values), stats.sem(values))
    assert high > 1 and auc.band == (pytest.approx(low), 1.0)
    assert seconds.band == (pytest.approx(low), pytest.approx(high))


@pytest.mark.thorough
@pytest.mark.parametrize("words", [
    "task=mnits", "method.temprature=1", "seed=0 training.lr>1", "--by=tsk", "--measure=acc", "--mesure=f1",
    "--best=accuracy", "--best=best.round --over=method.temperature", "--best=top:f1 --over=method.temperature",
    "--best=f1 --over=training.lr", "--best=f1 --over=seed", "--over=method", "--by", "--export=t.xlsx", "--sort=loss",
    "federated/fedprox", "-m",
])  # fmt: skip
def test_request_that_cannot_be_answered_is_refused(grid, words):
    with refuses():
        run_verb("compare", [f"paths.output_dir={grid}", *words.split()])


def test_folder_without_runs_is_refused(tmp_path):
    with refuses():
        ask(tmp_path / "none")
    with refuses():
        ask(tmp_path)
    begun(tmp_path)
    assert cells(ask(tmp_path)) == [(0, 1)]


def test_foreign_and_damaged_folders_are_named(grid):
    (grid / "mnist" / "fedavg_chill" / "x" / "config.yaml").parent.mkdir()
    (grid / "mnist" / "fedavg_chill" / "x" / "config.yaml").write_text("a: &b [*b]\n")
    other = begun(grid, task__name="cifar10")
    other.rename(grid / "mnist" / "fedavg_chill" / "moved")
    lone = grid / "a" / "b" / "c"
    lone.mkdir(parents=True)
    (lone / "result.json").write_text("{}")
    early = compared.failed(grid, seed=21)
    (early / "config.yaml").unlink()
    pipe = begun(grid, seed=20)
    os.mkfifo(pipe / "result.json")
    (grid / "tables").mkdir()
    (grid / "artifacts" / "vectors" / "00").mkdir(parents=True)
    table = ask(grid)
    assert column(table, 1) == [3, 3, 3]
    assert "folders that are not runs: a/b/c (no config.yaml)" in text(table) and "1 more" in text(table)


@pytest.mark.thorough
def test_damaged_files_never_give_a_wrong_number(grid):
    """Whatever happens to a file, the run is left out, or reported as doubtful, or has its own number."""
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
            table = ask(grid, by=("method.temperature",), measures=("accuracy",))
            place = heads(table).index("accuracy")
            means = {row[0]: row[place].mean for row in cells(table) if row[place]}
            right = {"16": 0.123456, "0.05": 0.72, "1": 0.62, "4": 0.52}
            assert "Left out" in text(table) or means == pytest.approx(right), (name, i)
        (folder / name).write_bytes(whole)
