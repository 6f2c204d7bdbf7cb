"""``knot-runner reproduce``: the order, the time, what is left out, the table; with runs made in this process."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from knot_runner.cli.main import main
from knot_runner.cli.reproduction import candidate, child
from knot_runner.cli.reproduction.child import CUT, command_of, run_for
from knot_runner.cli.reproduction.listed import chosen_presets, listed_presets
from knot_runner.cli.reproduction.results import PresetRow, data_text, guide_link, results_markdown
from knot_runner.cli.verbs import reproduce
from knot_runner.composing.commands import compose_all
from knot_runner.pipelines.single_run import complete_run
from knot_runner.sweeps.job import run_context
from knot_runner.util import processes
from knot_runner.util.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
#: Two temperatures and two seeds of digits that need no file, and one claim.
PRESET = """\
# @package _global_
# knot-runner experiment={name}
# a preset of a test
defaults:
  - override /task: femnist
  - override /method: fedavg_chill
  - override /hardware: cpu
task: {{limit: 300, shape: [1, 8, 8], source: {source}}}
partition: {{count: 6, alpha: 5.0}}
model: {{hidden: [16]}}
hardware: {{workers: 1}}
training: {{rounds: {rounds}, epochs: 1, participants: 3, batch: 8, lr: 0.05}}
sweep:
  method.temperature: 1,0.5
  seed: 0,1
report:
  kind: temperatures
  metrics: [accuracy, loss]
  seeds: 2
  claims:
    - text: colder is better
      source: a test
      measure: accuracy
      of: {{method.temperature: 0.5}}
      against: {{method.temperature: 1}}
      expect: higher
"""


@pytest.fixture
def folder(tmp_path):
    """A ``--config-dir`` with three presets and their list: ``quick`` and ``slow`` have data, ``away`` has none."""
    presets = tmp_path / "conf" / "experiment"
    presets.mkdir(parents=True)
    for name, source, rounds in (("quick", "embedded", 1), ("slow", "embedded", 2), ("away", "local", 1)):
        (presets / f"{name}.yaml").write_text(PRESET.format(name=name, source=source, rounds=rounds))
    (tmp_path / "conf" / "reproduce.yaml").write_text(
        "presets:\n- {preset: slow, runs: 4, minutes: 50}\n- {preset: away, runs: 4, minutes: 1}\n"
        "- {preset: quick, runs: 4, minutes: 2, words: [training.lr=0.1]}\n"
    )
    return tmp_path


@pytest.fixture
def made(monkeypatch):
    """Runs are made in this process, at most ``made.most`` a preset; the presets that were begun, and their seconds."""
    found = SimpleNamespace(most=4, code=0, begun=[])

    def here(one, seconds):
        found.begun.append((one.name, seconds))
        for job in one.preset.jobs[: found.most]:
            complete_run(run_context(job, lambda *_: None, lambda _: None))
        return found.code if found.most >= 4 else CUT

    monkeypatch.setattr(child, "run_preset", here)
    monkeypatch.delenv("KNOT_DATA", raising=False)
    return found


def reproduced(folder, capsys, *words, code=0):
    """(Lines on standard output, on standard error, of the Markdown)."""
    capsys.readouterr()
    given = ["reproduce", f"--config-dir={folder / 'conf'}", f"paths.out={folder / 'out'}", *words]
    assert main(given) == code
    said = capsys.readouterr()
    table = folder / "out" / "reproduced.md"
    return said.out.splitlines(), said.err.splitlines(), table.read_text().splitlines() if table.exists() else []


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
    assert err == ["slow: 1 runs"] and "| 2 | 0 | 0 | 1 | " in table[2] and len(table) == 3
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

    monkeypatch.setattr(child, "run_preset", refused)
    _, err, _ = reproduced(folder, capsys, "quick", "seed=5", code=1)
    assert err[-1] == "knot-runner: quick: no place"


def test_a_preset_that_was_cut_before_its_first_run_ended_is_said(folder, made, capsys):
    made.most = 0
    _, err, table = reproduced(folder, capsys, "quick", "--hours=1")
    assert err[-1] == "quick: the time is over; the same command goes on with it"
    assert table[2:] == ["", "- quick: begun, none of its 4 runs is finished"]


def test_a_command_that_is_ended_leaves_its_table(folder, made, capsys, monkeypatch):
    """SIGTERM after three of four runs: what it calls before the process leaves (``util.processes``)."""
    made.most = 3
    here = child.run_preset

    def ended(one, seconds):
        here(one, seconds)
        for action in reversed(processes._sigterm_actions):
            action()
        raise SystemExit(processes.TERMINATED)

    monkeypatch.setattr(child, "run_preset", ended)
    with pytest.raises(SystemExit):
        reproduced(folder, capsys, "quick", "slow", "--hours=1")
    table = (folder / "out" / "reproduced.md").read_text().splitlines()
    assert table[2].startswith(
        "| [quick](conf/experiment/README.md) | femnist (embedded): 300 training, 33 test | 1 of 2 "
    )
    assert table[4:] == ["- quick: partial, 3 of 4 runs"] and "| - |" not in table[2]
    assert len(json.loads((folder / "out" / "reproduced.json").read_text())["seconds"]) == 1


@pytest.mark.thorough
def test_a_preset_in_a_process_of_its_own(folder, capsys):
    """One run, all the way: the command, its process, what it prints, the table."""
    one = ["seed=0", "method.temperature=1", "hydra/launcher=basic"]
    out, err, table = reproduced(folder, capsys, "quick", "--hours=1", *one)
    assert err == ["quick: 1 runs"] and "| 1 | 0 | 0 | no claims | " in table[2] and len(table) == 3
    assert "accuracy" in (folder / "out" / "reproduced" / "quick.txt").read_text()


def test_claims_without_runs_are_counted_apart(folder, made, capsys):
    made.most = 2  # of T=1 alone
    _, _, table = reproduced(folder, capsys, "quick", "--hours=1")
    assert "| 1 of 2 |" not in table[2] and "| 0 of 2 | 0 | 0 | 0 + 1 without runs | " in table[2]


@pytest.mark.thorough
@pytest.mark.parametrize("words, line", [
    (["--hours=soon"], "--hours: 'soon' is not a number of hours from 0"), (["--hours=-1"], "--hours: '-1'"),
    (["--hours=nan"], "--hours: 'nan'"), (["--hour=1"], "did you mean '--hours=2'?"),
    (["quik"], "quik: there is no such preset (did you mean 'quick'?)"),
    (["quick", "experiment=slow"], "experiment: reproduce quick names the preset already"),
    (["quick", "training.round=1"], "training.round"), (["quick", "report.seeds=1"], "report.seeds: is planned before"),
    (["quick", "paths.out=a,b"], "paths.out: one folder is right"), (["a\x1bb"], "a?b: there is no such preset"),
])  # fmt: skip
def test_what_is_refused(words, line, folder, capsys):
    _, err, _ = reproduced(folder, capsys, *words, code=2)
    assert len(err) == 1 and line in err[0]


@pytest.mark.parametrize("text, line", [
    ("presets:\n- {preset: nothing}", "there is no preset 'nothing'"), ("presets: 3", "presets: expected a list"),
    ("presets:\n- {preset: quick, minutes: 0}", "presets[0].minutes: 0.0 is not above 0"), ("[", "cannot be read"),
    ("presets:\n- {preset: quick, runs: 0}", "presets[0].runs: 0 is not at least 1"),
    ("presets:\n- {preset: quick, words: [--stale=rerun]}", "presets[0].words: "),
    ("presets:\n- {preset: quick, hours: 1}", "presets[0].hours: there is no such setting"),
])  # fmt: skip
def test_lists_that_cannot_be_meant(text, line, folder):
    (folder / "conf" / "reproduce.yaml").write_text(text)
    with pytest.raises(UserError) as problem:
        listed_presets(str(folder / "conf"))
    assert str(problem.value).startswith(f"{folder / 'conf' / 'reproduce.yaml'}: ") and line in str(problem.value)


def test_our_list_is_of_presets_that_the_guide_has_a_time_for():
    listed = listed_presets()
    guide = (ROOT / "conf" / "experiment" / "README.md").read_text()
    assert len({one.preset for one in listed}) == len(listed) >= 15 and all(one.minutes for one in listed)
    for one in listed:
        path, _, anchor = guide_link(one.preset).partition("#")
        section = re.split(r"^## ", guide, flags=re.M)
        (own,) = [part for part in section if f"\n| `{one.preset}` |" in part]
        assert path == "conf/experiment/README.md"
        assert re.sub(r"[^a-z0-9 -]", "", own.splitlines()[0].lower()).replace(" ", "-") == anchor
    (one,) = chosen_presets(["kd_mnist", "kd_mnist"], None)
    assert one.minutes is None


def made_of(claims, minutes, named=False):
    return SimpleNamespace(claims=claims, minutes_left=lambda: minutes, named=named)


def test_most_claims_per_minute_come_first():
    slow, fast, unknown, done = made_of(9, 90), made_of(3, 10), made_of(99, None), made_of(1, 0.0)
    assert candidate.order([slow, unknown, fast, done]) == [done, fast, slow, unknown]
    end = time.monotonic() + 600
    assert [reproduce._fits(one, end) for one in (slow, fast, unknown, done)] == [False, False, False, True]
    assert reproduce._fits(fast, end + 60) and reproduce._fits(made_of(1, None, True), end)
    assert not reproduce._fits(done, end - 601) and not reproduce._fits(made_of(1, 0.0, True), end - 601)


@pytest.mark.thorough
def test_minutes_are_those_of_the_runs_that_are_left_and_typed_words_replace_listed_ones(folder):
    flags = [f"--config-dir={folder / 'conf'}"]
    listed = {one.preset: one for one in listed_presets(str(folder / "conf"))}
    out = f"paths.out={folder / 'out'}"
    one = candidate.candidate(listed["quick"], [out, "seed=0,1,2"], flags, False)
    assert one.left() == 6 and one.minutes_left() == 3.0 and one.preset.jobs[0].settings.training.lr == 0.1
    other = candidate.candidate(listed["quick"], [out, "training.lr=0.2"], flags, False)
    assert other.words == [*flags, out, "training.lr=0.2"]
    command = command_of(one)
    assert command[:4] == [sys.executable, "-m", "knot_runner", "experiment=quick"]
    assert command[-1] == "hydra/launcher=fused"
    assert [job.run_id for job in compose_all(command[3:])[0]] == [job.run_id for job in one.preset.jobs]
    basic = candidate.candidate(listed["slow"], [out, "hydra/launcher=basic"], flags, False)
    assert command_of(basic)[-1] == "hydra/launcher=basic"


def test_the_time_ends_a_command_and_a_deaf_one_is_killed(tmp_path, monkeypatch):
    begin = [sys.executable, "-SIc"]
    assert run_for([*begin, "print(3); raise SystemExit(5)"], tmp_path / "said.txt", 20) == 5
    assert (tmp_path / "said.txt").read_text() == "3\n"
    monkeypatch.setattr(child, "GRACE_SECONDS", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    heard = (
        "import sys, time, signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('heard')))\ntime.sleep(60)"
    )
    began = time.monotonic()
    assert run_for([*begin, deaf], tmp_path / "said.txt", 0.3) == CUT
    assert time.monotonic() - began < 10
    monkeypatch.setattr(child, "GRACE_SECONDS", 5)
    assert run_for([*begin, heard], tmp_path / "said.txt", 0.3) == CUT
    assert (tmp_path / "said.txt").read_text() == "heard\n"


def test_data_and_names_in_the_table():
    knot = {"a": {"role": "local", "train": 30, "test": 5}, "b": {"train": 1000, "test": 7}}
    results = [
        {"task": "erc", "source": "local", "datasets": knot},
        {"task": "erc", "source": "local", "datasets": {"train": 2000, "test": 3}},
        {"task": "gaussians", "source": ""},
    ]
    assert data_text(results) == "erc (local): 2,000 training, 12 test; gaussians"
    row = PresetRow(("a_b", "x|y", "3", "1", "0", "2", "4 s"), "x.md#y", 0, 3)
    assert results_markdown([row], ["<b>: no"]).splitlines()[2:] == [
        r"| [a\_b](x.md#y) | x\|y | 3 | 1 | 0 | 2 | 4 s |", "", "- &lt;b&gt;: no",
    ]  # fmt: skip


def test_help_has_every_flag():
    assert all(f"  {flag}" in reproduce.REPRODUCE_HELP for flag in reproduce.REPRODUCE_FLAGS)
