"""What no longer changes is committed once: parts that commits share, under the same guarantees."""

import json
import random

import pytest
import torch

from knot_runner.engine import tensor_file
from knot_runner.engine.commit import Checkpoint
from knot_runner.records import ROUNDS_FILE, clear_states
from tests.cli import test_failing_disk as failing
from tests.contents import write_content
from tests.disk import WAYS, Disk

#: Values of each client's tensor, and bytes of two of them, which are enough for a part here.
SIZE = 100
TWO = 2 * 4 * SIZE


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(tensor_file, "PART_BYTES", TWO)


def rounds(checkpoint, state, first, last, written=None, clients=12, drawn=3):
    """Rounds as a federated method has them: a few clients' tensors and the global one are new in each."""
    for step in range(first, last):
        new = {
            f"control/{client}": torch.full((SIZE,), step + client / 100) for client in drawn_in(step, clients, drawn)
        }
        state = {**state, **new, "weights": torch.full((7,), float(step))}
        state = {**state, **checkpoint.save(step, state, {"step": step}, [{"step": step}])}
        if written is not None:
            written.append((checkpoint.folder / f"state-{step % 2}.safetensors").stat().st_size)
    return state


def drawn_in(step, clients, drawn):
    return random.Random(step).sample(range(clients), drawn)


def plainly(last, clients=12, drawn=3):
    state = {"weights": torch.full((7,), last - 1.0)}
    for step in range(last):
        state |= {f"control/{c}": torch.full((SIZE,), step + c / 100) for c in drawn_in(step, clients, drawn)}
    return state


def same(actual, wanted):
    return actual.keys() == wanted.keys() and all(torch.equal(actual[name], wanted[name]) for name in wanted)


def parts_of(folder):
    return sorted(path.name for path in folder.glob("state-part-*"))


def test_checkpoint_restores_every_commit_and_writes_only_changes(tmp_path):
    checkpoint, state, written = Checkpoint(tmp_path, share=True), {}, []
    for step in range(40):
        state = rounds(checkpoint, state, step, step + 1, written)
        assert same(state, plainly(step + 1))
        assert same(Checkpoint(tmp_path).load().tensors, plainly(step + 1)), step
    assert max(written) < 4 * SIZE * 6 + 1000  # what two rounds change, and not twelve clients
    held = sum((tmp_path / name).stat().st_size for name in parts_of(tmp_path))
    assert held < 2.5 * 12 * 4 * SIZE + 400 * len(parts_of(tmp_path))  # parts are given up as tensors change


def test_checkpoint_resumes_without_rewriting_parts(tmp_path):
    rounds(Checkpoint(tmp_path, share=True), {}, 0, 10)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in parts_of(tmp_path)}
    checkpoint = Checkpoint(tmp_path, share=True)
    commit = checkpoint.load()
    assert (commit.step, commit.values) == (9, {"step": 9}) and before
    kept = checkpoint.save(10, {**commit.tensors, "weights": torch.zeros(7)}, {}, [{"step": 10}])
    assert before.items() <= {name: (tmp_path / name).stat().st_mtime_ns for name in parts_of(tmp_path)}.items()
    assert same(Checkpoint(tmp_path).load().tensors, {**plainly(10), "weights": torch.zeros(7)} | kept)


def test_checkpoint_rewrites_tensors_changed_in_place_and_forgets_removed_ones(tmp_path):
    checkpoint, state = Checkpoint(tmp_path, share=True), {f"c/{n}": torch.zeros(SIZE) for n in range(4)}
    for step in range(3):
        state |= checkpoint.save(step, state, {}, [{}])
    assert parts_of(tmp_path)
    state["c/2"].add_(1)
    state |= checkpoint.save(3, state, {}, [{}])
    assert Checkpoint(tmp_path).load().tensors["c/2"].tolist() == [1] * SIZE
    del state["c/1"]
    checkpoint.save(4, state, {}, [{}])
    assert same(Checkpoint(tmp_path).load().tensors, state)


def test_checkpoint_never_shares_inference_mode_tensors(tmp_path):
    with torch.inference_mode():
        own = {f"c/{n}": torch.zeros(SIZE) for n in range(4)}
    checkpoint = Checkpoint(tmp_path, share=True)
    assert [checkpoint.save(step, own, {}, [{}]) for step in range(3)] == [{}, {}, {}] and not parts_of(tmp_path)


def test_checkpoint_writes_no_parts_when_small_or_unshared(tmp_path, monkeypatch):
    rounds(Checkpoint(tmp_path / "alone"), {}, 0, 6)
    monkeypatch.setattr(tensor_file, "PART_BYTES", 1 << 23)
    rounds(Checkpoint(tmp_path / "small", share=True), {}, 0, 6)
    for name in ("alone", "small"):
        assert not parts_of(tmp_path / name)
        assert json.loads((tmp_path / name / "commit.json").read_text())["parts"] == []


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_checkpoint_sets_all_files_aside_on_damaged_part(tmp_path, damage):
    folder = tmp_path / "method" / "run"
    rounds(Checkpoint(folder, share=True), {}, 0, 8)
    files = {path.name for path in folder.iterdir()}
    victim = folder / parts_of(folder)[-1]
    content = victim.read_bytes()
    if damage == "gone":
        victim.unlink()
    else:
        victim.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if damage == "flip" else b""))
    commit = Checkpoint(folder, share=True).load()
    assert (commit.step, commit.tensors) == (-1, {})
    assert str(victim) in commit.problem and "set-aside-1" in commit.problem and "from the beginning" in commit.problem
    assert [path.name for path in folder.iterdir()] == ["set-aside-1"]
    gone = {victim.name} if damage == "gone" else set()
    assert {path.name for path in (folder / "set-aside-1").iterdir()} == files - gone
    rounds(Checkpoint(folder, share=True), {}, 0, 8)
    assert same(Checkpoint(folder).load().tensors, plainly(8))


def test_parts_that_no_commit_names_are_deleted(tmp_path):
    rounds(Checkpoint(tmp_path, share=True), {}, 0, 8)
    named = parts_of(tmp_path)
    (tmp_path / "state-part-99.safetensors").write_bytes(b"of a commit that never was")
    Checkpoint(tmp_path).load()
    assert parts_of(tmp_path) == named
    (tmp_path / "commit.json").unlink()
    Checkpoint(tmp_path).load()
    assert not parts_of(tmp_path)


def test_write_result_omits_parts_that_clear_states_removes(tmp_path):
    run = tmp_path / "task" / "method" / "run"
    rounds(Checkpoint(run, share=True), {}, 0, 8)
    assert parts_of(run)
    sealed = write_content(run, {})["digest"]
    assert not [name for name in sealed if name.startswith("state")] and ROUNDS_FILE in sealed
    (run / ROUNDS_FILE).unlink()
    rounds(Checkpoint(run, share=True), {}, 0, 8)
    clear_states(run)
    assert {path.name for path in run.iterdir()} == {"result.json", ROUNDS_FILE}


SCAFFOLD = ("method=scaffold", "training.momentum=0", "training.rounds=2", "training.local_epochs=1")


def test_scaffold_with_parts_survives_any_failing_call(tmp_path, monkeypatch):
    """A control variate of each client, which rounds settle: 4.6 kB each."""
    monkeypatch.setattr(tensor_file, "PART_BYTES", 1 << 62)
    failing.once(tmp_path / "whole", SCAFFOLD)
    monkeypatch.setattr(tensor_file, "PART_BYTES", 4000)
    disk = Disk(tmp_path / "parts")
    failing.once(tmp_path / "parts", SCAFFOLD, disk)
    wanted = failing.records(tmp_path / "whole")
    assert failing.records(tmp_path / "parts") == wanted
    touched = [at for at, (_, path) in enumerate(disk.calls) if "state-part" in path]
    assert len(touched) > 3
    for turn, at in enumerate(touched):
        out = tmp_path / str(turn)
        out.mkdir()
        failing.once(out, SCAFFOLD, Disk(out, at, WAYS[(turn + turn // 4) % 4]))
        assert failing.once(out, SCAFFOLD) is None and failing.records(out) == wanted, (at, disk.calls[at])
        assert not list(out.rglob("*.tmp"))
