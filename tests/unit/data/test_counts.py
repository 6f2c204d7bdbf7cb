"""Examples of each class per party counted by hand, what is said of small parties, and digests of data."""

import hashlib
import struct

import numpy as np
import pytest

from knot_runner.data.counts import Counts, of_all_images, of_images, of_parties
from knot_runner.data.images import Partition
from knot_runner.data.load import load_task
from knot_runner.data.tasks import Dataset, Examples, Images, ImageTask, PartyTask


def counts(called="clients", same_classes=True, **trained):
    """Parties by their training examples: of each class, then unlabeled."""
    parties = {name: {"train": np.array(row), "test": np.array([1] * len(row))} for name, row in trained.items()}
    return Counts(called, ["ape", "bee", "cow"], parties, same_classes)


def images(labels, test):
    train, held = (Images(np.zeros((len(y), 1, 2, 2), np.uint8), np.array(y, np.int64)) for y in (labels, test))
    return ImageTask("x", ["ape", "bee", "cow"], None, train, held, [0.0], [1.0], "local")


def test_counts_of_images_by_hand():
    task = images([0, 0, 1, 2, 2, 2], [1, 2])
    rows = [np.array([0, 1]), np.array([2, 3, 4, 5])]
    made = of_images(task, Partition(["a", "b"], rows, [np.array([1]), np.array([0, 1])]))
    parties = {"a": {"train": [2, 0, 0], "test": [0, 0, 1]}, "b": {"train": [0, 1, 3], "test": [0, 1, 1]}}
    assert made.record() == {"classes": ["ape", "bee", "cow"], "parties": parties}
    assert made.lines() == ["a train 2: ape=2", "a test 1: cow=1", "b train 4: bee=1, cow=3", "b test 2: bee=1, cow=1"]
    assert made.warnings() == ["warning: a has training examples of one class only (2 of class ape)"]
    assert of_all_images(task).record()["parties"] == {"all images": {"train": [2, 1, 3], "test": [0, 1, 1]}}


def test_counts_of_texts_by_hand(folder, task_dict, make):
    made = of_parties(load_task(make(task_dict), folder))
    assert made.record()["parties"]["A"] == {"train": [6, 6], "valid": [2, 2], "test": [2, 2]}
    assert made.record()["unlabeled"] == {"T": {"train": 12, "valid": 4}}
    assert made.record()["parties"]["T"] == {"train": [0, 0], "valid": [0, 0]}
    assert "T train 12: unlabeled" in made.lines() and "A train 12: bad=6, good=6" in made.lines()
    assert made.warnings() == [] == made.warnings(batch=12)  # a transfer set has no labels, and that is right
    assert made.warnings(batch=13) == [
        "warning: 2 of 3 data sets have fewer training examples than a batch of 13, such as A (12 examples)"
    ]


@pytest.mark.parametrize(("trained", "same_classes", "wanted"), [
    ({"a": [0, 5, 0, 0], "b": [0, 0, 7, 0], "c": [1, 1, 1, 0]}, True,
     "warning: 2 of 3 clients have training examples of one class only, such as a (5 of class bee)"),
    ({"a": [1, 1, 0, 0], "b": [2, 1, 0, 0]}, True,
     "warning: a has fewer training examples than the number of classes, 3 (2 examples)"),
    ({"a": [1, 1, 1, 0]}, True, None), ({"a": [0, 0, 0, 9]}, True, None), ({"a": [1, 1, 0, 0]}, False, None),
    ({"a": [2, 0, 0, 0]}, False, "warning: a has training examples of one class only (2 of class ape)"),
])  # fmt: skip
def test_counts_warn_of_small_or_one_class_parties(trained, same_classes, wanted):
    assert counts(same_classes=same_classes, **trained).warnings() == ([wanted] if wanted else [])


def test_counts_of_many_parties_are_one_line(monkeypatch):
    made = counts(**{f"c{i}": [i, 1, 0, 0] for i in range(13)})
    assert made.lines()[0] == "13 clients, train: 1 to 13 examples each (median 7) of 1 to 2 classes"
    monkeypatch.setattr("knot_runner.data.counts.MAX_RECORDED", 12)
    assert made.record()["parties"] == {"ALL": {"train": [78, 13, 0], "test": [13, 13, 13]}}
    monkeypatch.setattr("knot_runner.data.counts.MAX_RECORDED", 13)
    assert len(made.record()["parties"]) == 13


def test_load_task_records_rows_of_each_file(folder, task_dict, make):
    task_dict["datasets"]["A"]["local"]["files"]["pool"][0]["where"] = {"label": "good"}
    task_dict["datasets"]["A"]["drop"], task_dict["datasets"]["A"]["labels"] = ["bad"], {"good": "good"}
    assert load_task(make(task_dict), folder).rows == {"a.csv": 20, "g.csv": 20, "t.csv": 20}
    file = folder / "g.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-3]))  # cut at a line's end
    assert load_task(make(task_dict), folder).rows["g.csv"] == 17


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()


def long(*numbers):
    """Numbers of eight bytes, the lowest first."""
    return struct.pack(f"<{len(numbers)}q", *numbers)


TEXTS = Examples(["ab", "ü"], None, np.array([2, -1]))
PAIRS = Examples(["ab", "c"], ["", "def"], np.array([0, 1]))
PIXELS = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)


def test_examples_digest_hashes_lengths_texts_and_labels():
    texts = (long(2), b"ab", long(2), "ü".encode())
    assert TEXTS.digest == sha(b"single", *texts, long(2, -1))
    texts = (long(2), b"ab", long(1), b"c", long(0), long(3), b"def")
    assert PAIRS.digest == sha(b"pairs", *texts, long(0, 1))


def test_images_by_type_shape_and_values():
    head = b"uint8 (2, 1, 2, 2)"
    images = Images(PIXELS, np.array([1, 0]), files=np.array([3, 4]))
    assert images.digest == sha(head, PIXELS.tobytes(), long(1, 0), b"-", long(3, 4))
    assert Images(PIXELS, np.array([1, 0]), users=np.array([3, 4])).digest != images.digest


def test_tasks_by_their_parts():
    parties = {
        "A": Dataset("A", "local", {"train": TEXTS, "test": PAIRS}),
        "T": Dataset("T", "transfer", {"train": PAIRS}),
    }
    lines = [f"A local train {TEXTS.digest}", f"A local test {PAIRS.digest}", f"T transfer train {PAIRS.digest}"]
    assert PartyTask("t", None, parties, "local").digest == sha("\n".join(lines).encode())
    train, test = Images(PIXELS, np.array([0, 1])), Images(PIXELS, np.array([1, 1]))
    for transfer in (None, train):
        task = ImageTask("t", ["a", "b"], None, train, test, [0.0], [1.0], "local", transfer=transfer)
        parts = [train.digest, test.digest, *([transfer.digest] if transfer else [])]
        assert task.digest == sha(" ".join(parts).encode())
