"""When pipelines commit, and from what they go on."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

from knot_runner.engine import hardware
from knot_runner.engine.commit import COMMIT_SHARE, MAX_UNCOMMITTED, Commit, Commits, stands
from knot_runner.methods.party import StageState
from knot_runner.pipelines import context
from knot_runner.pipelines.distillation import all_stored
from knot_runner.report.compare.answer import compare_runs
from knot_runner.report.compare.settings import parse_filter
from knot_runner.report.frame import selected_runs
from tests.runs import run
from tests.tiny import CLUSTERING, TINY_IMAGES, TINY_TAUGHT, replaced


def saved(folder, data, steps):
    commits = Commits(folder, data, lambda _: None)
    _, rows = commits.resume()
    for step in range(len(rows), steps):
        rows.append({"step": step})
        commits.save(step, {"x": torch.tensor([float(step)])}, rows)
    return rows


def test_commits_resume_with_state_and_log(tmp_path):
    saved(tmp_path, "data", 3)
    commit, rows = Commits(tmp_path, "data", lambda _: None).resume()
    assert commit.step == 2 and commit.tensors["x"].item() == 2.0 and rows == [{"step": s} for s in range(3)]
    assert saved(tmp_path, "data", 5) == [{"step": s} for s in range(5)]
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 5  # each row once


def test_commits_log_steps_and_plain_values(tmp_path):
    commits = Commits(tmp_path, "data", lambda _: None)
    _, rows = commits.resume()
    rows += [{"step": step} for step in range(4)]
    commits.save(3, {"x": torch.zeros(1)}, rows, {"state": {"student": "distill/abc"}})
    commit, logged = Commits(tmp_path, "data", lambda _: None).resume()
    assert logged == rows and commits.step == 3 and commit.values["state"] == {"student": "distill/abc"}


@pytest.mark.parametrize(("data", "damage", "reason"), [
    ("other", False, "the data changed since this run was interrupted. The run starts from the beginning"),
    ("data", True, "rounds.jsonl: does not match its checksum in commit.json. The saved state is moved to"),
])  # fmt: skip
def test_other_or_damaged_commits_begin_afresh(tmp_path, data, damage, reason):
    saved(tmp_path, "data", 3)
    if damage:
        (tmp_path / "rounds.jsonl").write_text('{"step": 0}\n')
    said = []
    commit, rows = Commits(tmp_path, data, said.append).resume()
    assert commit.step == -1 and not rows and len(said) == 1 and reason in said[0]
    assert saved(tmp_path, data, 5) == [{"step": s} for s in range(5)]


def test_commits_due_waits_for_share_of_time(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("knot_runner.engine.commit.time.monotonic", lambda: now[0])
    commits = Commits(tmp_path, "data", lambda _: None)
    commits.resume()
    write = commits._checkpoint.save
    monkeypatch.setattr(commits._checkpoint, "save", lambda *a: (write(*a), now.__setitem__(0, now[0] + 2.0)))
    commits.save(0, {"x": torch.zeros(1)}, [{"step": 0}])
    now[0] += 0.9 * 2.0 / COMMIT_SHARE
    assert not commits.due()
    now[0] += 0.2 * 2.0 / COMMIT_SHARE
    assert commits.due()
    commits._cost = 1e9  # however long a commit takes
    now[0] = commits._since + MAX_UNCOMMITTED
    assert not commits.due()
    now[0] += 0.1
    assert commits.due()


def test_commit_that_is_not_usable_begins_afresh(tmp_path):
    saved(tmp_path, "data", 3)
    seen = []

    def usable(values, tensors):
        seen.append((values["data"], tensors["x"].item()))
        return False

    commit, rows = Commits(tmp_path, "data", lambda _: None).resume(usable)
    assert commit.step == -1 and rows == [] and seen == [("data", 2.0)]


@pytest.mark.parametrize(("changes", "code", "goes_on", "said"), [
    ([], None, True, []), ([], "abc", True, []),
    (["torch 2.0 -> 2.1"], None, True, ["resumes from a commit of another version: torch 2.0 -> 2.1"]),
    (["torch 2.0 -> 2.1"], "abc", False, ["does not resume from a commit of another version: torch 2.0 -> 2.1"]),
])  # fmt: skip
def test_stands_rejects_changed_commits_only_when_rerunning_stale(monkeypatch, changes, code, goes_on, said):
    monkeypatch.setattr("knot_runner.engine.commit.code_changes", lambda values: changes)
    heard = []
    assert stands(Commit(2, values={"data": "x"}), code, heard.append) is goes_on
    assert heard == said
    assert stands(Commit(-1), code, heard.append)  # there is none


def test_state_is_used_while_its_artifacts_exist():
    store = SimpleNamespace(find=lambda stage, key: "found" if (stage, key) == ("local", "there") else None)
    assert all_stored(StageState({"A": "local/there"}, selected_epoch=3), store) and all_stored(StageState(), store)
    assert not all_stored(StageState({"A": "local/there", "B": "local/gone"}), store)


def test_run_resumed_on_another_machine_says_so(tmp_path, monkeypatch):
    real = Commits.save
    monkeypatch.setattr(Commits, "due", lambda self: True)
    for rounds, machine in enumerate(("AVX512, 1 thread", "DEFAULT, 2 threads", "DEFAULT, 2 threads"), 1):
        for module in (hardware, context):
            monkeypatch.setattr(module, "machine", lambda machine=machine: machine)

        def save(self, step, *known, last=rounds):
            saved = real(self, step, *known)
            if step + 1 == last < 3:
                raise KeyboardInterrupt
            return saved

        monkeypatch.setattr(Commits, "save", save)
        with contextlib.suppress(KeyboardInterrupt):
            result = run(tmp_path, *TINY_IMAGES).result
    told = "this run was computed on several machines (AVX512, 1 thread; DEFAULT, 2 threads)"
    assert result["machine"] == "DEFAULT, 2 threads" and sum(told in note for note in result["notes"]) == 1


@pytest.mark.parametrize(("words", "change"), [
    ([*TINY_IMAGES, "method=finetune", "method.personalization.epochs=5"], "method.personalization.lr=0.02"),
    ([*TINY_IMAGES, *CLUSTERING], "training.lr=0.02"), (TINY_TAUGHT, "method=rkd"),
], ids=["rounds", "distances", "teacher"])  # fmt: skip
def test_parts_of_another_machine_are_reported(tmp_path, monkeypatch, words, change):
    notes = []
    for machine, more in (("FIRST", []), ("SECOND", [change])):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda machine=machine: machine)
        result = run(tmp_path, *replaced(words, *more)).result
        notes.append([note for note in result["notes"] if "several machines" in note])
    here = f"1 thread, torch {torch.__version__}"
    told = f"several machines (FIRST, {here}; SECOND, {here})"
    assert [len(own) for own in notes] == [0, 1] and told in notes[1][0]
    assert any(f"Computed on {told}" in line for line in compared(tmp_path).lines)
    key, _, value = change.partition("=")
    alone = compared(tmp_path, f"{key}!={value}")
    assert not any("machines" in line for line in alone.lines)


def compared(out, *filters):
    return compare_runs(selected_runs(out, list(map(parse_filter, filters))))
