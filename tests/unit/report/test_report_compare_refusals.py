"""``knot-runner compare``: mistakes are one line, and foreign or damaged folders are named and left out."""

import os
import random

import pytest

from knot_runner.cli.parsers import run_verb
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.report.compared import ask, begun, column, failed, heads, made, text, three_temperatures


@pytest.fixture
def grid(tmp_path):
    return three_temperatures(tmp_path)


# ------------------------------------------------------------------------------------------------------------- refusals


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


# --------------------------------------------------------------------------------------------------------- bad folders


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
