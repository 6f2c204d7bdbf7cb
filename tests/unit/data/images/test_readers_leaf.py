"""LEAF json: writers and their files, pixels that were bytes, and every way a file may be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knot_runner.data.images import ImageTask, load_images
from tests.golden.messages import refuses


def rows(count: int, start: int = 0) -> tuple[list[list[float]], list[int]]:
    """``count`` images of 2x2 whose pixels are bytes / 255, rounded as the small real copy is, and labels."""
    x = [[round(((start + i) * 4 + j) % 256 / 255, 4) for j in range(4)] for i in range(count)]
    return x, [(start + i) % 10 for i in range(count)]


@pytest.fixture
def load(image_task, tmp_path: Path):
    def read(**local) -> ImageTask:
        local = {"format": "leaf", "train": ["train"], "test": ["test"]} | local
        return load_images(image_task("mnist", shape=[1, 2, 2], local=local), tmp_path)

    return read


@pytest.fixture
def shards(write: SimpleNamespace, tmp_path: Path) -> Path:
    """Two train files with three writers (one without images), and a test file in another order."""
    write.leaf(tmp_path / "train" / "a_train_9.json", {"w2": rows(3), "w0": rows(2, 3)})
    write.leaf(tmp_path / "train" / "b_train_9.json", {"w1": rows(4, 5), "none": ([], [])})
    write.leaf(tmp_path / "test" / "all_test_9.json", {"w1": rows(1, 20), "w2": rows(2, 21)})
    return tmp_path


def test_writers_and_files(load, shards: Path) -> None:
    task = load()
    assert task.user_names == ["w2", "w0", "w1", "none"]
    assert task.file_names == ["train/a_train_9.json", "train/b_train_9.json"]
    assert task.train.users.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert task.train.files.tolist() == [0] * 5 + [1] * 4
    assert task.test.users.tolist() == [2, 0, 0] and task.test.files.tolist() == [1, 0, 0]
    assert task.train.labels.tolist() == list(range(9)) and task.test.labels.tolist() == [0, 1, 2]
    assert task.train.pixels.dtype == np.uint8 and task.shape == (1, 2, 2)
    np.testing.assert_array_equal(task.train.pixels.ravel(), np.arange(36))
    assert task.notes == ["mnist: the training images are of 9 of the 10 classes"]


def test_without_a_test_set_every_writer_is_tested(load, shards: Path) -> None:
    task = load(test=[])
    assert task.test.users.tolist() == [0, 1, 2] and len(task.train) == 6
    assert task.notes[:1] == ["mnist: no test set of its own; 20% of each writer's images, 3, are held out"]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pixels=st.lists(st.integers(0, 255), min_size=4, max_size=4), places=st.integers(4, 17))
def test_bytes_come_back_exactly(write, load, tmp_path: Path, pixels: list[int], places: int) -> None:
    write.leaf(tmp_path / "train" / "a.json", {"w": ([[round(p / 255, places) for p in pixels]] * 2, [0, 1])})
    np.testing.assert_array_equal(load(test=[]).train.pixels.ravel(), pixels)


def test_other_values_stay_as_they_are(write, load, tmp_path: Path) -> None:
    write.leaf(tmp_path / "train" / "a.json", {"w": rows(2), "v": ([[0.123, 0, 1, 0.5]], [3])})
    write.leaf(tmp_path / "test" / "a.json", {"w": rows(1)})
    task = load()
    assert task.train.pixels.dtype == task.test.pixels.dtype == np.float32
    np.testing.assert_allclose(task.train.pixels[2].ravel(), [0.123, 0, 1, 0.5], rtol=1e-7)
    np.testing.assert_allclose(task.train.pixels[1].ravel() * 255, [4, 5, 6, 7], rtol=1e-6)


ONE = {"w": rows(2)}
WRONG = {
    "num_samples": (ONE, {"num_samples": [3]}, "writer 'w': has 2 x and 2 y, and num_samples says 3"),
    "fewer counts": (ONE, {"num_samples": []}, "has 1 users, but 0 num_samples"),
    "users": (ONE, {"users": ["v"]}, "users has 1 names that are not those of its 1 user_data"),
    "a user twice": (ONE, {"users": ["w", "w"], "num_samples": [2, 2]}, "users has 2 names"),
    "no users": (ONE, {"users": None}, "is not LEAF json"),
    "a number for a user": ({"1": rows(2)}, {"users": [1]}, "users has 1, which is no text"),
    "a list for a user": (ONE, {"users": [["w"]]}, "users has ['w'], which is no text"),
    "null for a user": (ONE, {"users": ["w", None], "num_samples": [2, 0]}, "users has None, which is no text"),
    "label too high": ({"w": (rows(2)[0], [0, 10])}, {}, "label 10 is not one of task.classes, 0 to 9"),
    "label -1": ({"w": (rows(2)[0], [0, -1])}, {}, "label -1 is not one of"),
    "label C": ({"w": (rows(2)[0], [0, "C"])}, {}, "label 'C' is not one of"),
    "label None": ({"w": (rows(2)[0], [0, None])}, {}, "label None is not one of"),
    "label true": ({"w": (rows(2)[0], [0, True])}, {}, "label True is not one of"),
    "label 1.0": ({"w": (rows(2)[0], [0, 1.0])}, {}, "label 1.0 is not one of"),
    "a long x": ({"w": ([[0.0] * 5], [1])}, {}, "an x is not 4 numbers, as task.shape has it"),
    "texts": ({"w": (["abcd"], [1])}, {}, "an x is not 4 numbers"),
    "a text among numbers": ({"w": ([[0, 0, 0, "0.5"]], [1])}, {}, "an x holds something that is not a number"),
    "null": ({"w": ([[0, 0, 0, None]], [1])}, {}, "an x holds something that is not a number"),
    "a list in a list": ({"w": ([[0, 0, 0, [1]]], [1])}, {}, "an x holds something that is not a number"),
    "0..255": ({"w": ([[0, 0, 0, 255]], [1])}, {}, "its pixels lie in 0 to 255; LEAF's are 0 to 1"),
    "negative": ({"w": ([[0, 0, 0, -0.1]], [1])}, {}, "its pixels lie in -0.1 to 0.0"),
    "NaN": ({"w": ([[0, 0, 0, float("nan")]], [1])}, {}, "holds NaN, which is no pixel value"),
    "no x": (ONE, {"user_data": {"w": {"y": [1, 2]}}}, "writer 'w': needs the lists x and y"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files(write, load, tmp_path: Path, name: str) -> None:
    writers, changes, message = WRONG[name]
    write.leaf(tmp_path / "train" / "a.json", writers, **changes)
    with refuses() as caught:
        load(test=[])
    assert message in str(caught.value) and "a.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [
    "[" * 100_000, '{"users": ' + "9" * 10_000 + "}", '{"users": [], "users": []}', "[1]", "",
    '{"users": [], "num_samples": [], "user_data": {}}',
])  # fmt: skip
def test_hostile_json(load, tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with refuses():
        load(train=["a.json"], test=[])


def test_bytes_that_are_no_text(load, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"users": ["\xe9"]}')
    with refuses():
        load(train=["a.json"], test=[])


def test_a_byte_order_mark_is_read_over(write, load, tmp_path: Path) -> None:
    path = write.leaf(tmp_path / "a.json", {"w": rows(3)})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert len(load(train=["a.json"], test=[]).train) == 2


def test_files_that_do_not_go_together(write, load, shards: Path) -> None:
    write.leaf(shards / "test" / "b.json", {"w9": rows(1)})
    with refuses():
        load()
    write.leaf(shards / "test" / "b.json", {"w1": rows(1)})
    with refuses():
        load()
    write.leaf(shards / "train" / "c.json", {"w0": rows(1)})
    with refuses():
        load()
    with refuses():
        load(train=["absent.json"])
    (shards / "bare").mkdir()
    with refuses():
        load(train=["bare"])
    with refuses():
        load(test=["train"])


def test_a_cut_is_never_read(load, shards: Path) -> None:
    path = shards / "train" / "a_train_9.json"
    whole = path.read_bytes()
    json.loads(whole)
    for stop in np.linspace(0, len(whole) - 1, 25).astype(int):
        path.write_bytes(whole[:stop])
        with refuses():
            load()
