"""``knot-runner reproduce``: the order, the time, what is left out, the table; with runs made in this process."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from knot_runner.cli import candidate
from knot_runner.cli.candidate import CUT
from knot_runner.cli.main import main
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.runs.single_run import complete_run
from knot_runner.util import processes
from knot_runner.util.errors import UserError
from tests.reproduction import presets_in


@pytest.fixture
def folder(tmp_path):
    return presets_in(tmp_path)


@pytest.fixture
def made(monkeypatch):
    """Runs are made in this process, at most ``made.most`` a preset; the presets that were begun, and their seconds."""
    found = SimpleNamespace(most=4, code=0, begun=[])

    def here(one, seconds):
        found.begun.append((one.name, seconds))
        for job in one.preset.jobs[: found.most]:
            complete_run(run_context(job, lambda *_: None, lambda _: None))
        return found.code if found.most >= 4 else CUT

    monkeypatch.setattr(candidate, "run_preset", here)
    monkeypatch.delenv("KNOT_DATA", raising=False)
    return found


def reproduced(folder, capsys, *words, code=0):
    """(Lines on standard output, on standard error without the first answer, of the Markdown)."""
    capsys.readouterr()
    given = ["reproduce", f"--config-dir={folder / 'conf'}", f"paths.out={folder / 'out'}", *words]
    assert main(given) == code
    said = capsys.readouterr()
    table = folder / "out" / "reproduced.md"
    err = said.err.splitlines()
    if code != 2:
        assert re.fullmatch(r"reproduce: composing \d presets?", err[0])  # before what takes seconds
    err = [line for line in err if not line.startswith("reproduce: composing")]
    return said.out.splitlines(), err, table.read_text().splitlines() if table.exists() else []


@pytest.mark.thorough
def test_what_fits_is_run_and_the_rest_is_said(folder, made, capsys):
    out, err, table = reproduced(folder, capsys, "--hours=0.5")
    assert [line.split()[0] for line in out[:4]] == ["preset", "away", "quick", "slow"]
    assert out[1].split() == ["away", "1", "4", "1.0", "absent"] and out[3].split() == ["slow", "1", "4", "50", "there"]
    assert [name for name, _ in made.begun] == ["quick"] and 1700 < made.begun[0][1] <= 1800
    away, begun, slow = err
    assert away.startswith("away: skipped, paths.data: is not set") and begun == "quick: 4 runs"
    assert away.endswith("'knot-runner data femnist paths.data=DIR' says where from")
    assert slow.startswith("slow: skipped, about 50 minutes, and 29") or slow.startswith(
        "slow: skipped, about 50 minutes, and 30"
    )
    assert table[0] == "| preset | data | seeds | hold | fail | undecided | time |"
    assert table[2].startswith(
        "| [quick](conf/experiment/README.md) | femnist (embedded): 300 training, 33 test | 2 | 0 | 0 | 1 | "
    )
    assert [line[:13] for line in table[4:]] == ["- away: skipp", "- slow: skipp"]
    assert out[-1] == str(folder / "out" / "reproduced.md")
    times = json.loads((folder / "out" / "reproduced.json").read_text())["seconds"]
    out, err, again = reproduced(folder, capsys, "--hours=0.5")
    assert out[1].split()[:4] == ["quick", "1", "0", "0"] and len(made.begun) == 1  # nothing is run twice
    assert json.loads((folder / "out" / "reproduced.json").read_text())["seconds"] == times and again[:3] == table[:3]
    assert re.fullmatch(r"quick [0-9a-f]{12}", *times)
    out, err, again = reproduced(folder, capsys, "quick", "--hours=0", "paths.data=elsewhere", "training.lr=0.1")
    assert again[:3] == table[:3]  # whatever the command, the runs are the same, and so is their time


@pytest.mark.thorough
def test_a_preset_that_is_named_is_begun_and_goes_on_another_time(folder, made, capsys):
    made.most = 3  # two seeds of T=1, one of T=0.5
    out, err, table = reproduced(folder, capsys, "slow", "--hours=0.1", "training.rounds=1")
    assert err[1] == "slow: the time is over; the same command goes on with it"
    assert err[-1] == "slow: partial, 3 of 4 runs" == table[-1].removeprefix("- ")
    assert "| 1 of 2 | 0 | 0 | 1 | " in table[2]
    first = sum(json.loads((folder / "out" / "reproduced.json").read_text())["seconds"].values())
    made.most = 4
    out, err, table = reproduced(folder, capsys, "slow", "--hours=0.1", "training.rounds=1")
    assert err == ["slow: 1 run"] and "| 2 | 0 | 0 | 1 | " in table[2] and len(table) == 3
    (spent,) = json.loads((folder / "out" / "reproduced.json").read_text())["seconds"].values()
    assert spent > first
    out, err, _ = reproduced(folder, capsys, "slow", "--hours=0", "training.rounds=1")
    assert not err and out[1].split()[:4] == ["preset,", "data", "seeds", "hold"] and len(made.begun) == 2


@pytest.mark.thorough
def test_a_failure_is_a_line_and_the_others_go_on(folder, made, capsys, monkeypatch):
    made.code = 1
    (folder / "conf" / "experiment" / "away.yaml").write_text("sweep: {nonsense: 1}\n")
    out, err, table = reproduced(folder, capsys, "away", "quick", "--hours=2", code=1)
    assert [line.split(":")[1] for line in err if "knot-runner: " in line] == [" away", " quick"]
    assert "knot-runner: quick: failed with exit code 1, and 0 runs left" in err and len(table) == 6

    def refused(one, seconds):
        raise UserError("no place")

    monkeypatch.setattr(candidate, "run_preset", refused)
    _, err, _ = reproduced(folder, capsys, "quick", "seed=5", code=1)
    assert err[-1] == "knot-runner: quick: no place"


def test_a_command_that_is_ended_leaves_its_table(folder, made, capsys, monkeypatch):
    """SIGTERM after three of four runs: what it calls before the process leaves (``util.processes``)."""
    made.most = 3
    here = candidate.run_preset

    def ended(one, seconds):
        here(one, seconds)
        for action in reversed(processes._sigterm_actions):
            action()
        raise SystemExit(processes.TERMINATED)

    monkeypatch.setattr(candidate, "run_preset", ended)
    with pytest.raises(SystemExit):
        reproduced(folder, capsys, "quick", "slow", "--hours=1")
    table = (folder / "out" / "reproduced.md").read_text().splitlines()
    assert table[2].startswith(
        "| [quick](conf/experiment/README.md) | femnist (embedded): 300 training, 33 test | 1 of 2 "
    )
    assert table[4:] == ["- quick: partial, 3 of 4 runs"] and "| - |" not in table[2]
    assert len(json.loads((folder / "out" / "reproduced.json").read_text())["seconds"]) == 1


def test_claims_without_runs_are_counted_apart(folder, made, capsys):
    made.most = 2  # of T=1 alone
    _, _, table = reproduced(folder, capsys, "quick", "--hours=1")
    assert "| 1 of 2 |" not in table[2] and "| 0 of 2 | 0 | 0 | 0 + 1 without runs | " in table[2]


@pytest.mark.thorough
@pytest.mark.parametrize("words, line", [
    (["--hours=soon"], "--hours: 'soon' is not a number of hours from 0"), (["--hours=-1"], "--hours: '-1'"),
    (["--hours=nan"], "--hours: 'nan'"), (["--hour=1"], "did you mean '--hours=2'?"),
    (["quik"], "quik: there is no such preset (did you mean 'quick'?)"),
    (["quick", "experiment=slow"], "reproduce takes the name alone, as in 'knot-runner reproduce slow'"),
    (["quick", "training.round=1"], "training.round"), (["quick", "report.seeds=1"], "report.seeds: is planned before"),
    (["quick", "paths.out=a,b"], "paths.out: one folder is right"), (["a\x1bb"], "a?b: there is no such preset"),
])  # fmt: skip
def test_what_is_refused(words, line, folder, capsys):
    _, err, _ = reproduced(folder, capsys, *words, code=2)
    assert len(err) == 1 and line in err[0]
