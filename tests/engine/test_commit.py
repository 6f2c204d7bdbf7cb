"""The commit protocol: every write may be the last, and a resumed run sees the last whole commit or an error."""

import json

import pytest
import torch

from knot_runner import files
from knot_runner.engine.commit import LOG, Checkpoint
from knot_runner.errors import UserError


def save(checkpoint, step):
    checkpoint.save(step, {"w": torch.full((3,), float(step))}, {"step": step}, [{"step": step}])


def test_nothing_yet(tmp_path):
    assert Checkpoint(tmp_path).load().step == -1


def test_the_last_commit_comes_back(tmp_path):
    checkpoint = Checkpoint(tmp_path)
    for step in range(3):
        save(checkpoint, step)
    commit = Checkpoint(tmp_path).load()
    assert (commit.step, commit.values) == (2, {"step": 2})
    assert commit.tensors["w"].tolist() == [2, 2, 2]
    assert [row["step"] for row in checkpoint.log()] == [0, 1, 2]


class Killed(BaseException):
    """Stands for kill -9: nothing of ours catches it."""


@pytest.mark.parametrize("nth", range(1, 13))
def test_killed_at_any_io_call_the_last_commit_stands(tmp_path, monkeypatch, nth):
    """Die at the n-th fsync or rename of the second commit; a fresh process must see step 0 or 1, log in step."""
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 0)
    calls = 0

    def dying(real):
        def call(*arguments, **more):
            nonlocal calls
            calls += 1
            if calls == nth:
                raise Killed
            return real(*arguments, **more)

        return call

    monkeypatch.setattr(files.os, "fsync", dying(files.os.fsync))
    monkeypatch.setattr(files.Path, "replace", dying(files.Path.replace))
    try:
        save(checkpoint, 1)
        died = False
    except Killed:
        died = True
    monkeypatch.undo()
    fresh = Checkpoint(tmp_path)
    commit = fresh.load()
    assert commit.step == 1 if not died else commit.step in (0, 1)
    assert commit.tensors["w"].tolist() == [commit.step] * 3
    assert [row["step"] for row in fresh.log()] == list(range(commit.step + 1))
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("position", [0, 40, -1])
def test_one_flipped_bit_is_refused(tmp_path, position):
    checkpoint = Checkpoint(tmp_path)
    save(checkpoint, 0)
    state = tmp_path / "state-0.safetensors"
    content = bytearray(state.read_bytes())
    content[position] ^= 1
    state.write_bytes(content)
    with pytest.raises(UserError, match=r"state-0.safetensors: does not match its digest"):
        Checkpoint(tmp_path).load()


def test_a_damaged_record_is_refused(tmp_path):
    save(Checkpoint(tmp_path), 0)
    record = tmp_path / "commit.json"
    record.write_text(record.read_text()[:-20])
    with pytest.raises(UserError, match="commit.json: is damaged"):
        Checkpoint(tmp_path).load()


def test_rows_logged_but_not_committed_are_cut(tmp_path):
    save(Checkpoint(tmp_path), 0)
    with (tmp_path / LOG).open("a") as file:
        file.write(json.dumps({"step": 1}) + "\n")
    Checkpoint(tmp_path).load()
    assert len((tmp_path / LOG).read_text().splitlines()) == 1


def test_a_failed_write_keeps_the_old_file_and_names_the_new(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    files.write_json(path, {"a": 1})

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UserError, match=r"x.json: disk full: needs 12 bytes, has \d"):
        files.write_json(path, {"a": 2})
    monkeypatch.undo()
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
