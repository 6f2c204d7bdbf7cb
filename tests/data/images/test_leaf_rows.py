"""Images taken out of LEAF json by a table are what parsing every number gives; where not, every number is parsed."""

import json

import numpy as np
import pytest

from knot_runner.data.images import leaf
from knot_runner.data.images.leaf import WORD, TakenOut, UntrustworthyRows, spelled_bytes

#: How programs write k / 255.
SPELLINGS = [
    lambda k: k / 255, lambda k: round(k / 255, 4), lambda k: round(k / 255, 6), lambda k: float(np.float32(k / 255)),
]  # fmt: skip


def row(start, spelling=SPELLINGS[0], side=300):
    return [spelling((start + j) % 256) for j in range(side)]


def written(path, users, text=None):
    content = {"users": list(users), "num_samples": [len(x) for x, _ in users.values()]}
    content["user_data"] = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    path.write_text(text(content) if text else json.dumps(content))
    return path


def both(path, monkeypatch, side=300):
    """(with the table, by parsing every number, whether the table was used to the end)"""
    checked = []
    with monkeypatch.context() as patch:
        patch.setattr(
            TakenOut, "check", lambda self, real=TakenOut.check: (real(self), checked.append(len(self._rows)))
        )
        fast = leaf._read(path, side, 62)
    with monkeypatch.context() as patch:
        patch.setattr(leaf, "spelled_bytes", dict)
        slow = leaf._read(path, side, 62)
    assert list(fast) == list(slow)
    for name, (pixels, labels) in slow.items():
        assert fast[name][0].dtype == pixels.dtype and np.array_equal(fast[name][0], pixels), name
        assert np.array_equal(fast[name][1], labels)
    return fast, bool(checked) and checked[0] > 0


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_the_byte(tmp_path, monkeypatch, spelling):
    users = {"a": ([row(0, spelling), row(7, spelling)], [1, 2]), "b": ([row(99, spelling)], [61]), "none": ([], [])}
    found, used = both(written(tmp_path / "x.json", users), monkeypatch)
    assert used and found["a"][0][1].tolist() == [(7 + j) % 256 for j in range(300)]
    assert found["a"][0].dtype == np.uint8


def test_other_values_of_one_writer_leave_the_table_to_the_others(tmp_path, monkeypatch):
    found, used = both(written(tmp_path / "x.json", {"a": ([row(0)], [1]), "b": ([[0.1234] * 300], [2])}), monkeypatch)
    assert used and found["a"][0].dtype == np.uint8 and found["b"][0].dtype == np.float32


def test_a_file_without_spaces_is_parsed_to_the_same_bytes(tmp_path, monkeypatch):
    path = written(tmp_path / "x.json", {"a": ([row(0)], [1])}, lambda c: json.dumps(c, separators=(",", ":")))
    found, used = both(path, monkeypatch)
    assert not used and found["a"][0][0].tolist() == [j % 256 for j in range(300)]


def test_whole_numbers_are_bytes_too(tmp_path, monkeypatch):
    found, used = both(written(tmp_path / "x.json", {"a": ([[0, 1] * 150], [1])}), monkeypatch)
    assert used and found["a"][0][0, :4].tolist() == [0, 255, 0, 255]


def test_no_spelling_names_two_bytes_and_each_rounds_to_its_own():
    assert len(spelled_bytes()) > 3000
    for text, byte in spelled_bytes().items():
        assert abs(float(text) - byte / 255) <= leaf.ROUNDED, text
        assert json.loads(text) == float(text)


NAMED = {
    "other values beside known ones": ({"a": ([row(0), [0.5] * 300], [1, 1])}, None),
    "other values": ({"a": ([[0.1234] * 300], [1])}, None),
    "the word is a name": ({WORD + "0": ([row(0)], [1])}, None),
    "an escape": ({"\u00e9": ([row(0)], [1])}, None),
    "an image where none is read": ({"a": ([row(0)], [1])}, lambda c: json.dumps({**c, "more": row(3)})),
    "an escaped word beside it": (
        {"a": ([row(0)], [1])}, lambda c: json.dumps({**c, "more": row(3), WORD: 1}).replace("taken", "t\\u0061ken"),
    ),
    "an image in a name": ({"a [" + ", ".join(["0.0"] * 300) + "]": ([row(0)], [1])}, None),
    "labels as many as pixels": ({"a": ([row(k) for k in range(300)], [0, 1] * 150)}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
def test_what_the_table_cannot_be_trusted_with_is_parsed(tmp_path, monkeypatch, case):
    users, text = NAMED[case]
    _, used = both(written(tmp_path / "x.json", users, text), monkeypatch)
    assert not used


def test_words_that_nobody_took_out_are_no_images():
    taken = TakenOut(json.dumps({"x": [row(0), row(1)]}).encode(), 300)
    x = json.loads(taken.left)["x"]
    assert x == [WORD + "0", WORD + "1"] and taken.pixels([]) is None and taken.pixels([[0.5]]) is None
    with pytest.raises(UntrustworthyRows):
        taken.pixels([x[0], [0.5]])
    with pytest.raises(UntrustworthyRows):
        taken.check()
    assert taken.pixels(x).shape == (2, 300)
    taken.check()
