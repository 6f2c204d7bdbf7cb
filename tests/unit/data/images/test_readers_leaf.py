"""LEAF json: writers and their files, pixels that were bytes, and every way a file may be wrong."""

import numpy as np
import pytest

from knot_runner.data.images import load_images
from tests.golden.messages import refuses


def rows(count, start=0):
    """``count`` images of 2x2 whose pixels are bytes / 255, rounded as the small real copy is, and labels."""
    x = [[round(((start + i) * 4 + j) % 256 / 255, 4) for j in range(4)] for i in range(count)]
    return x, [(start + i) % 10 for i in range(count)]


@pytest.fixture
def load(image_task, tmp_path):
    def read(**local):
        local = {"format": "leaf", "train": ["train"], "test": ["test"]} | local
        return load_images(image_task("mnist", shape=[1, 2, 2], local=local), tmp_path)

    return read


@pytest.fixture
def shards(write, tmp_path):
    """Two train files with three writers (one without images), and a test file in another order."""
    write.leaf(tmp_path / "train" / "a_train_9.json", {"w2": rows(3), "w0": rows(2, 3)})
    write.leaf(tmp_path / "train" / "b_train_9.json", {"w1": rows(4, 5), "none": ([], [])})
    write.leaf(tmp_path / "test" / "all_test_9.json", {"w1": rows(1, 20), "w2": rows(2, 21)})
    return tmp_path


def test_read_leaf_numbers_writers_and_files(load, shards):
    task = load()
    assert task.user_names == ["w2", "w0", "w1", "none"]
    assert task.file_names == ["train/a_train_9.json", "train/b_train_9.json"]
    assert task.train.users.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert task.train.files.tolist() == [0] * 5 + [1] * 4
    assert task.test.users.tolist() == [2, 0, 0] and task.test.files.tolist() == [1, 0, 0]
    assert task.train.labels.tolist() == list(range(9)) and task.test.labels.tolist() == [0, 1, 2]
    assert task.train.pixels.dtype == np.uint8 and task.shape == (1, 2, 2)
    np.testing.assert_array_equal(task.train.pixels.ravel(), np.arange(36))
    assert task.notes == ["mnist: the training images cover 9 of the 10 classes"]


@pytest.mark.parametrize("places", [4, 5, 9, 17])
def test_read_leaf_restores_bytes(write, load, tmp_path, places):
    values = np.arange(256).reshape(64, 4)
    rounded = [[round(value / 255, places) for value in row] for row in values.tolist()]
    write.leaf(tmp_path / "train" / "a.json", {"w": (rounded, [0, 1] * 32)})
    task = load(test=[])
    pixels = np.concatenate([task.train.pixels, task.test.pixels]).reshape(-1, 4)
    assert sorted(pixels.tolist()) == values.tolist()


def test_read_leaf_keeps_other_values(write, load, tmp_path):
    path = write.leaf(tmp_path / "train" / "a.json", {"w": rows(2), "v": ([[0.123, 0, 1, 0.5]], [3])})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte order mark
    write.leaf(tmp_path / "test" / "a.json", {"w": rows(1)})
    task = load()
    assert task.train.pixels.dtype == task.test.pixels.dtype == np.float32
    np.testing.assert_allclose(task.train.pixels[2].ravel(), [0.123, 0, 1, 0.5], rtol=1e-7)
    np.testing.assert_allclose(task.train.pixels[1].ravel() * 255, [4, 5, 6, 7], rtol=1e-6)


ONE = {"w": rows(2)}
X = rows(2)[0]
#: writers, and what else the file says
WRONG = {
    "num_samples": (ONE, {"num_samples": [3]}), "fewer counts": (ONE, {"num_samples": []}),
    "users": (ONE, {"users": ["v"]}), "a user twice": (ONE, {"users": ["w", "w"], "num_samples": [2, 2]}),
    "no users": (ONE, {"users": None}), "a number for a user": ({"1": rows(2)}, {"users": [1]}),
    "a list for a user": (ONE, {"users": [["w"]]}),
    "null for a user": (ONE, {"users": ["w", None], "num_samples": [2, 0]}),
    "label too high": ({"w": (X, [0, 10])}, {}), "label -1": ({"w": (X, [0, -1])}, {}),
    "label C": ({"w": (X, [0, "C"])}, {}), "label None": ({"w": (X, [0, None])}, {}),
    "label true": ({"w": (X, [0, True])}, {}), "label 1.0": ({"w": (X, [0, 1.0])}, {}),
    "a long x": ({"w": ([[0.0] * 5], [1])}, {}), "texts": ({"w": (["abcd"], [1])}, {}),
    "a text among numbers": ({"w": ([[0, 0, 0, "0.5"]], [1])}, {}), "null": ({"w": ([[0, 0, 0, None]], [1])}, {}),
    "a list in a list": ({"w": ([[0, 0, 0, [1]]], [1])}, {}), "0..255": ({"w": ([[0, 0, 0, 255]], [1])}, {}),
    "negative": ({"w": ([[0, 0, 0, -0.1]], [1])}, {}), "NaN": ({"w": ([[0, 0, 0, float("nan")]], [1])}, {}),
    "no x": (ONE, {"user_data": {"w": {"y": [1, 2]}}}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_read_leaf_refuses_content(write, load, tmp_path, name):
    writers, changes = WRONG[name]
    write.leaf(tmp_path / "train" / "a.json", writers, **changes)
    with refuses():
        load(test=[])


@pytest.mark.parametrize("content", [
    b"[" * 100_000, b'{"users": ' + b"9" * 10_000 + b"}", b"[1]", b"",
    b'{"users": [], "num_samples": [], "user_data": {}}', b'{"users": ["\xe9"]}',
], ids=["nested", "number", "list", "empty", "nobody", "latin"])  # fmt: skip
def test_read_leaf_refuses_json(load, tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with refuses():
        load(train=["a.json"], test=[])


def test_read_leaf_refuses_mismatched_files(write, load, shards):
    for file, writer in (("test/b.json", "w9"), ("test/b.json", "w1"), ("train/c.json", "w0")):
        write.leaf(shards / file, {writer: rows(1)})
        with refuses():
            load()
    (shards / "bare").mkdir()
    for changes in ({"train": ["absent.json"]}, {"train": ["bare"]}):
        with refuses():
            load(**changes)
