"""The commit protocol: every write may be the last, and a resumed run sees the last whole commit or an error."""

import itertools
import json
import os

import pytest
import torch

from knot_runner.engine.commit import Checkpoint, Commit
from knot_runner.records import ROUNDS_FILE
from knot_runner.util.errors import UserError
from knot_runner.util.files import append_synced, locked
from tests.disk import Disk, Killed


def save(checkpoint, step):
    checkpoint.save(step, {"w": torch.full((3,), float(step))}, {"step": step}, [{"step": step}])


@pytest.mark.parametrize("nth", range(20))
def test_checkpoint_survives_kill_at_any_call(tmp_path, nth):
    """Die before the n-th call of the second commit; a fresh process must see step 0 or 1, log in step."""
    checkpoint, died = Checkpoint(tmp_path), False
    save(checkpoint, 0)
    try:
        with Disk(tmp_path, nth):
            save(checkpoint, 1)
    except Killed:
        died = True
    fresh = Checkpoint(tmp_path)
    commit = fresh.load()
    assert commit.step in ((0, 1) if died else (1,)) and commit.tensors["w"].tolist() == [commit.step] * 3
    assert [row["step"] for row in fresh.log()] == list(range(commit.step + 1))
    assert not list(tmp_path.glob("*.tmp"))


def committed(folder, steps=3):
    checkpoint = Checkpoint(folder)
    for step in range(steps):
        save(checkpoint, step)
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def changes(content):
    for place in range(0, len(content), 3):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
    yield from (content[:length] for length in range(0, len(content), 23))
    yield None


@pytest.mark.parametrize("name", ["commit.json", "state-0.safetensors", ROUNDS_FILE])
def test_checkpoint_detects_any_changed_byte(tmp_path, name):
    """The state that the third commit names is state-0."""
    whole = committed(tmp_path / "method" / "work")
    for number, changed in enumerate(changes(whole[name])):
        folder = tmp_path / str(number) / "method" / "work"
        folder.mkdir(parents=True)
        for other, content in whole.items():
            (folder / other).write_bytes(content)
        (folder / name).unlink() if changed is None else (folder / name).write_bytes(changed)
        commit = Checkpoint(folder).load()
        if name == "commit.json" and changed is None:  # as of work that has no commit yet
            assert commit == Commit(-1) and (folder / ROUNDS_FILE).stat().st_size == 0
            continue
        if commit.step == 2 and name == "commit.json":  # white space between the words of JSON
            assert json.loads(changed) == json.loads(whole[name])
            continue
        assert (commit.step, commit.tensors, commit.values) == (-1, {}, {}), (name, number)
        assert str(folder / name) in commit.problem and "set-aside-1" in commit.problem
        kept = {path.name: path.read_bytes() for path in (folder / "set-aside-1").iterdir()}
        expected = {**whole, name: changed}
        assert kept == {other: content for other, content in expected.items() if content is not None}
        assert sorted(path.name for path in folder.iterdir()) == ["set-aside-1"]


NAMES = [("commit.json", 3), ("state-0.safetensors", 3), (ROUNDS_FILE, 3), (ROUNDS_FILE, 0)]


@pytest.mark.parametrize(("name", "steps"), NAMES)
def test_checkpoint_stops_at_what_it_cannot_read(name, steps, tmp_path):
    committed(tmp_path, steps)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match=f"not a regular file.*{name}"):
        Checkpoint(tmp_path).load()
    assert not list(tmp_path.glob("set-aside-*"))
    for write in (lambda path: append_synced(path, "x"), lambda path: locked(path).__enter__()):
        with pytest.raises(UserError, match=f"{name}: .*not a regular file"):
            write(tmp_path / name)


@pytest.mark.parametrize("other", ["teachers/b", "students/a"])
def test_checkpoint_refuses_the_commit_of_other_work(tmp_path, other):
    committed(tmp_path / "teachers" / "a")
    (tmp_path / "students").mkdir()
    (tmp_path / "teachers" / "a").rename(tmp_path / other)
    commit = Checkpoint(tmp_path / other).load()
    assert commit.step == -1 and "commit.json: belongs to another run or stage (teachers/a)" in commit.problem


def test_checkpoint_restarts_after_repeated_damage(tmp_path):
    whole = committed(tmp_path)
    for number in (1, 2):
        (tmp_path / ROUNDS_FILE).write_bytes(whole[ROUNDS_FILE][:-1])
        assert f"set-aside-{number}" in Checkpoint(tmp_path).load().problem
        committed(tmp_path)
        assert Checkpoint(tmp_path).load().step == 2


def test_checkpoint_never_overwrites_the_committed_state(tmp_path):
    """Neither in one process nor by the one that goes on: the next commit is in the other file."""
    checkpoint, seen = Checkpoint(tmp_path), []
    for step in range(4):
        if step == 2:
            checkpoint = Checkpoint(tmp_path)
            assert checkpoint.load().step == 1
        save(checkpoint, step)
        seen.append(json.loads((tmp_path / "commit.json").read_text())["file"])
    assert all(a != b for a, b in itertools.pairwise(seen)), seen
