"""What ``knot-runner reproduce`` consists of: the list of presets, their order and time, their command, the table."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from knot_runner.cli import candidate
from knot_runner.cli.candidate import CUT, chosen_presets, listed_presets, run_for
from knot_runner.cli.reproduced import PresetRow, data_text, guide_link, results_markdown
from knot_runner.cli.verbs import reproduce
from tests.golden.messages import refuses
from tests.reproduction import presets_in

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path):
    return presets_in(tmp_path)


@pytest.mark.parametrize("text, line", [
    ("presets:\n- {preset: nothing}", "there is no preset 'nothing'"), ("presets: 3", "presets: expected a list"),
    ("presets:\n- {preset: quick, minutes: 0}", "presets[0].minutes: 0.0 is not above 0"), ("[", "cannot be read"),
    ("presets:\n- {preset: quick, runs: 0}", "presets[0].runs: 0 is not at least 1"),
    ("presets:\n- {preset: quick, words: [--stale=rerun]}", "presets[0].words: "),
    ("presets:\n- {preset: quick, hours: 1}", "presets[0].hours: there is no such setting"),
])  # fmt: skip
def test_lists_that_cannot_be_meant(text, line, folder):
    (folder / "conf" / "reproduce.yaml").write_text(text)
    with refuses() as problem:
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
    (one,) = chosen_presets(["kd/cifar100", "kd/cifar100"], None)
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


def test_the_time_ends_a_command_and_a_deaf_one_is_killed(tmp_path, monkeypatch):
    begin = [sys.executable, "-SIc"]
    assert run_for([*begin, "print(3); raise SystemExit(5)"], tmp_path / "said.txt", 20) == 5
    assert (tmp_path / "said.txt").read_text() == "3\n"
    monkeypatch.setattr(candidate, "GRACE_SECONDS", 0.1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    heard = (
        "import sys, time, signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('heard')))\ntime.sleep(60)"
    )
    began = time.monotonic()
    assert run_for([*begin, deaf], tmp_path / "said.txt", 0.3) == CUT
    assert time.monotonic() - began < 10
    monkeypatch.setattr(candidate, "GRACE_SECONDS", 5)
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
