"""Digests of data by hand: runs record them, so what they are made of may never change."""

import hashlib
import struct

import numpy as np

from knot_runner.data.tasks import Dataset, Examples, Images, ImageTask, PartyTask


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
