"""``knot-runner reproduce``: the order, the time, what is left out, the table."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from knot_runner.cli.main import main
from knot_runner.cli.verbs import reproduce
from knot_runner.composing.commands import compose_all
from knot_runner.pipelines.context import run_context
from knot_runner.pipelines.run import complete_run
from tests.golden.messages import refuses

ROOT = Path(__file__).resolve().parents[2]
#: Two temperatures and two seeds of digits that need no file, and one claim.
PRESET = """\
# @package _global_
# knot-runner experiment={name}
# a preset of a test
defaults:
  - override /task: femnist
  - override /method: fedavg_chill
  - override /hardware: cpu
task: {{max_examples: 300, shape: [1, 8, 8], source: {source}}}
partition: {{embedded_clients: 6, alpha: 5.0}}
model: {{hidden: [16]}}
hardware: {{num_workers: 1}}
training: {{rounds: {rounds}, local_epochs: 1, clients_per_round: 3, batch_size: 8, lr: 0.05}}
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
    """With a ``--config-dir`` of three presets and their list: ``quick`` and ``slow`` have data, ``failed`` none."""
    presets = tmp_path / "conf" / "experiment"
    presets.mkdir(parents=True)
    for name, source, rounds in (("quick", "embedded", 1), ("slow", "embedded", 2), ("failed", "local", 1)):
        (presets / f"{name}.yaml").write_text(PRESET.format(name=name, source=source, rounds=rounds))
    (tmp_path / "conf" / "reproduce.yaml").write_text(
        "presets:\n- {preset: slow, runs: 4, minutes: 50}\n- {preset: failed, runs: 4, minutes: 1}\n"
        "- {preset: quick, runs: 4, minutes: 2, words: [training.lr=0.1]}\n"
    )
    return tmp_path


@pytest.fixture
def made(monkeypatch):
    """Runs are made in this process, at most ``made.most`` a preset; the presets that were begun, and their seconds."""
    found = SimpleNamespace(most=4, code=0, begun=[])

    def here(command, printed, seconds):
        found.begun.append((printed.stem, seconds))
        for job in compose_all(command[3:])[0][: found.most]:
            complete_run(run_context(job, lambda *_: None, lambda _: None))
        return found.code if found.most >= 4 else None

    monkeypatch.setattr(reproduce, "run_for", here)
    monkeypatch.delenv("KNOT_DATA", raising=False)
    return found


def reproduced(folder, capsys, *words, code=0):
    capsys.readouterr()
    assert main(["reproduce", f"--config-dir={folder / 'conf'}", f"paths.output_dir={folder / 'out'}", *words]) == code
    table = folder / "out" / "reproduced.md"
    return capsys.readouterr().err.splitlines()[1:], table.read_text().splitlines() if table.exists() else []


def test_reproduce_runs_fitting_presets_and_reports_others(folder, made, capsys):
    err, table = reproduced(folder, capsys, "--hours=0.5")
    assert [name for name, _ in made.begun] == ["quick"] and 1700 < made.begun[0][1] <= 1800
    failed, begun, slow = err
    assert failed.startswith("failed: skipped, ") and "paths.data_dir" in failed and begun == "quick: 4 runs"
    assert slow.startswith("slow: skipped, since it takes about 50 minutes, but ")
    assert table[0] == "| preset | data | runs | seeds | hold | fail | undecided | time |"
    assert table[2].startswith("| quick | femnist (embedded) | 4 of 4 | 2 of 2 | 0 | 0 | 1 | ")
    assert [line[:14] for line in table[4:]] == ["- failed: skip", "- slow: skippe"]
    _, again = reproduced(folder, capsys, "--hours=0.5")
    assert len(made.begun) == 1 and again[:3] == table[:3]  # nothing runs twice


def test_named_preset_starts_and_resumes(folder, made, capsys):
    made.most = 3  # two seeds of T=1, one of T=0.5
    err, table = reproduced(folder, capsys, "slow", "--hours=0.1", "training.rounds=1")
    assert err == ["slow: 4 runs", "slow: the time limit is reached. Repeat the command to resume"]
    assert "| 3 of 4 | 1 of 2 | 0 | 0 | 1 | " in table[2] and table[4] == f"- {err[1]}"
    made.most = 4
    err, table = reproduced(folder, capsys, "slow", "--hours=0.1", "training.rounds=1")
    assert err == ["slow: 1 run"] and "| 4 of 4 | 2 of 2 | 0 | 0 | 1 | " in table[2]
    err, _ = reproduced(folder, capsys, "slow", "--hours=0", "training.rounds=1")
    assert not err and len(made.begun) == 2


def test_failure_is_reported_and_other_presets_run(folder, made, capsys):
    made.code = 1
    reproduced(folder, capsys, "quick", "--hours=2", "seed=0", code=1)
    (folder / "conf" / "experiment" / "failed.yaml").write_text("sweep: {nonsense: 1}\n")
    err, table = reproduced(folder, capsys, "failed", "quick", "--hours=2", code=1)
    assert err[0].startswith("knot-runner: failed: composing ") and err[-1].startswith("quick: failed with exit code 1")
    assert len(table) == 6
    reproduced(folder, capsys, "failed", "quick", "--hours=0", code=1)


@pytest.mark.thorough
def test_preset_runs_in_its_own_process(folder, capsys):
    one = ["seed=0", "method.temperature=1", "hydra/launcher=basic"]
    err, table = reproduced(folder, capsys, "quick", "--hours=1", *one)
    assert err == ["quick: 1 run"] and "| 1 of 1 | 1 of 1 | 0 | 0 | 0 | " in table[2]
    assert "accuracy" in (folder / "out" / "reproduced" / "quick.txt").read_text()


@pytest.mark.parametrize(
    "text", ["presets:\n- {preset: nothing, hours: 1}", "presets: 3", "[", "presets:\n- {preset: quick, runs: 0}"]
)
def test_invalid_lists_are_refused(text, folder):
    (folder / "conf" / "reproduce.yaml").write_text(text)
    with refuses():
        reproduce.listed_presets(str(folder / "conf"))


def test_listed_presets_have_minutes_and_guide_row():
    listed = reproduce.listed_presets()
    guides = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    assert len({one.preset for one in listed}) == len(listed) >= 5 and all(one.minutes for one in listed)
    assert all((ROOT / "conf" / "experiment" / f"{one.preset}.yaml").is_file() for one in listed)
    assert all(f"`{one.preset}`" in guides for one in listed)


def test_most_claims_per_minute_come_first():
    made = [(9, 90), (99, math.inf), (3, 10), (1, 0.0)]
    slow, unknown, fast, done = (SimpleNamespace(claims=claims, minutes_left=lambda m=m: m) for claims, m in made)
    assert reproduce.order([slow, unknown, fast, done]) == [done, fast, slow, unknown]


def test_candidate_counts_missing_runs_and_prefers_typed_words(folder):
    flags = [f"--config-dir={folder / 'conf'}", f"paths.output_dir={folder / 'out'}"]
    listed = {one.preset: one for one in reproduce.listed_presets(str(folder / "conf"))}
    one = reproduce.candidate(listed["quick"], [*flags, "seed=0,1,2"], False)
    assert one.left() == 6 and one.minutes_left() == 3.0 and one.preset.jobs[0].settings.training.lr == 0.1
    other = reproduce.candidate(listed["quick"], [*flags, "training.lr=0.2"], False)
    assert other.words == [*flags, "training.lr=0.2"]


def test_run_for_terminates_command_after_timeout(tmp_path):
    begin, file = [sys.executable, "-SIc"], tmp_path / "said" / "a.txt"
    assert reproduce.run_for([*begin, "print(3); raise SystemExit(5)"], file, 20) == 5
    assert file.read_text() == "3\n"
    heard = (
        "import sys, time, signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('heard')))\ntime.sleep(60)"
    )
    began = time.monotonic()
    assert reproduce.run_for([*begin, heard], file, 0.5) is None
    assert time.monotonic() - began < 10 and file.read_text() == "heard\n"
