"""LEAF's json files read by two processes: the same arrays, names, errors and runs as read by one."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest

from knot_runner.data import checksums
from knot_runner.data.checksums import ALONE, FileReaders, read_files
from knot_runner.data.images.load import load_images
from knot_runner.provenance.fingerprints import TICK
from knot_runner.util.errors import UserError
from knot_runner.util.workers import TaskPool
from tests.forked import PRELOADED
from tests.golden.messages import refuses

#: What other tests preload, too: the first of a process decides what its server imports.
TWO = FileReaders(2, tuple(PRELOADED))


@pytest.fixture
def pools(monkeypatch):
    """Two files are enough to read them in parallel; the number of processes of every pool that was begun."""
    begun = []

    def counted(workers, *arguments):
        begun.append(workers)
        return TaskPool(workers, *arguments)

    monkeypatch.setattr(checksums, "TaskPool", counted)
    monkeypatch.setattr(checksums, "SHARED_FROM", 0)
    return begun


def rows(draws, count, exact=True):
    """``count`` images of 2x2, of bytes or of other values, and labels."""
    pixels = draws.integers(0, 256, (count, 4)) / 255 if exact else draws.random((count, 4))
    return pixels.tolist(), draws.integers(0, 10, count).tolist()


@pytest.fixture
def shards(write, tmp_path):
    """Four train files, of which the first takes longest to read, and two test files."""
    draws = np.random.default_rng(0)
    for number, count in enumerate((2000, 5, 0, 3)):
        write.leaf(
            tmp_path / "train" / f"{number}.json", {f"w{number}": rows(draws, count), f"v{number}": rows(draws, 2)}
        )
    for number in (0, 1):
        write.leaf(tmp_path / "test" / f"{number}.json", {f"v{3 - number}": rows(draws, 2)})
    return tmp_path


@pytest.fixture
def load(image_task, shards):
    local = {"format": "leaf", "train": ["train"], "test": ["test"]}
    return lambda readers: load_images(image_task("mnist", shape=[1, 2, 2], local=local), shards, readers)


def both(load, pools):
    """What both ways of reading end with, which must be one."""
    ends = []
    for readers in (ALONE, TWO):
        with pytest.raises(UserError) as caught:
            load(readers)
        ends.append(str(caught.value))
    assert ends[0] == ends[1] and "\n" not in ends[0] and pools
    return ends[0]


@pytest.mark.parametrize("exact", [True, False])
def test_two_processes_find_what_one_finds(load, pools, shards, write, exact):
    if not exact:  # one writer whose pixels are no bytes makes all of them float32
        write.leaf(shards / "train" / "2.json", {"w2": rows(np.random.default_rng(1), 3, exact=False), "v2": ([], [])})
    time.sleep(2 * TICK / 1e9)  # until what the file system says of the files tells them from later ones
    alone = load(ALONE)
    assert not pools
    shared = load(TWO)
    assert pools == [2, 2]
    for mine, theirs in ((alone.train, shared.train), (alone.test, shared.test)):
        assert mine.pixels.dtype == theirs.pixels.dtype == (np.uint8 if exact else np.float32)
        for name in ("pixels", "labels", "users", "files"):
            one, other = getattr(mine, name), getattr(theirs, name)
            assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes(), name
    assert alone.digest == shared.digest
    for name in ("user_names", "file_names", "notes", "files"):
        assert getattr(alone, name) == getattr(shared, name)
    assert shared.user_names[:3] == ["w0", "v0", "w1"]


def test_damage_in_a_file_is_the_same_line(load, pools, shards, write):
    for number in (3, 1):
        (shards / "train" / f"{number}.json").write_text("{")
        assert f"{number}.json: not valid JSON" in both(load, pools)
    write.leaf(shards / "train" / "1.json", {"w1": ([[0, 0, 0, 2]], [1])})  # before the damage in 3.json
    assert "1.json: writer 'w1': its pixels lie in 0 to 2" in both(load, pools)


def test_files_that_do_not_go_together_are_the_same_line(load, pools, shards, write):
    write.leaf(shards / "train" / "2.json", {"w0": ([], [])})
    assert "train/2.json: writer 'w0' is in train/0.json too" in both(load, pools)
    write.leaf(shards / "train" / "2.json", {"w2": ([], []), "v2": ([], [])})
    (shards / "test" / "1.json").write_text("{")
    write.leaf(shards / "test" / "0.json", {"else": ([], [])})  # before the damage in 1.json
    assert "test/0.json: writer 'else' is in no train file" in both(load, pools)


def named(path, wrong=None):
    if path.name == wrong:
        raise UserError(f"{path}: wrong")
    return path.name


def test_processes_start_where_bytes_and_files_are_worth_it(pools, tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("a", "b", "absent")]
    for path in paths[:2]:
        path.write_bytes(b"1234")
    monkeypatch.setattr(checksums, "SHARED_FROM", 8)
    for readers, chosen, begun in [
        (TWO, paths, [2]), (FileReaders(9, TWO.preloaded), paths, [3]), (ALONE, paths, []), (TWO, paths[:1], []),
        (TWO, paths[1:], []), (TWO, [], []),
    ]:  # fmt: skip
        pools.clear()
        assert list(read_files(named, chosen, readers)) == [path.name for path in chosen]
        assert pools == begun


def dying(path):
    os._exit(9)


def interrupting(path, parent):
    if path.name == "a":
        os.kill(parent, signal.SIGINT)
    threading.Event().wait()


def test_a_process_that_dies_or_cannot_be_started_is_one_line(pools, tmp_path, monkeypatch):
    paths = [tmp_path / "a", tmp_path / "b"]
    with refuses():
        list(read_files(dying, paths, TWO))

    def full(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("knot_runner.util.workers.start_process", full)
    with refuses():
        list(read_files(named, paths, TWO))


def test_ctrl_c_ends_the_processes_at_once(pools, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(checksums, "TaskPool", lambda *given: (made.append(TaskPool(*given)), made[0])[1])
    with pytest.raises(KeyboardInterrupt):
        list(read_files(partial(interrupting, parent=os.getpid()), [tmp_path / "a", tmp_path / "b"], TWO))
    assert [worker._process for worker in made[0]._workers] == [None, None]
