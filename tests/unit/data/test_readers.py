"""Readers: what they accept, and that no broken or shortened file gets through."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.data.readers import read_csv, read_dailydialog, read_jsonl
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_read_csv_handles_quotes_line_ends_and_bom(tmp_path: Path) -> None:
    content = '\ufefftext,label\r\n"one, ""two""\r\nthree",good\r\nplain,bad\r\n'.encode()
    rows = list(read_csv(put(tmp_path / "x.csv", content)))
    assert rows == [(3, {"text": 'one, "two"\r\nthree', "label": "good"}), (4, {"text": "plain", "label": "bad"})]


@pytest.mark.parametrize(("content", "delimiter", "row"), [
    (b'text;label\n"one; two, three";good\n', ";", {"text": "one; two, three", "label": "good"}),
    (b"a;b,text|x\n1,2\n", ",", {"a;b": "1", "text|x": "2"}),
])  # fmt: skip
def test_read_csv_splits_at_its_delimiter_alone(tmp_path: Path, content: bytes, delimiter: str, row) -> None:
    assert list(read_csv(put(tmp_path / "x.csv", content), delimiter)) == [(2, row)]


def test_read_csv_reads_long_texts(tmp_path: Path) -> None:
    text = "long " * 40_000  # 200,000 characters; Python's own limit is 131,072
    (row,) = read_csv(put(tmp_path / "x.csv", f"text,label\n{text},good\n".encode()))
    assert row[1]["text"] == text


def test_read_csv_refuses_an_endless_field(tmp_path: Path) -> None:
    path = put(tmp_path / "x.csv", b'text,label\n"' + (b"x" * (1 << 20) + b"\n") * 17 + b'",good\n')
    with refuses():
        list(read_csv(path))


def test_read_jsonl_detects_gzip_by_first_bytes(tmp_path: Path) -> None:
    content = b'{"text": "a"}\r\n\n{"text": "b"}'
    expected = [(1, {"text": "a"}), (3, {"text": "b"})]
    assert list(read_jsonl(put(tmp_path / "plain.json.gz", content))) == expected
    assert list(read_jsonl(put(tmp_path / "packed.json", gzip.compress(content)))) == expected


@pytest.mark.parametrize("content", [
    b"", b"text,label\na,b\nc\n", b"text,label\na,b,c\n", b'text,label\na,"b\n', b'text,label\n"a"b,c\n',
    b"text,label\na,goo", b"text,label\r\na,b\r", b"text,text\na,b\n", "text,label\ncafé,b\n".encode("latin-1"),
    b"text;label\na, b;c\n", b"text\tlabel\na\tc\n", gzip.compress(b"text,label\n" + b"a,b\n" * 50, mtime=0)[:-9],
    "text,label\n".encode("utf-16"),
])  # fmt: skip
def test_read_csv_refuses_broken_files(tmp_path: Path, content: bytes) -> None:
    with refuses():
        list(read_csv(put(tmp_path / "x.csv", content)))


@pytest.mark.parametrize("content", [
    b'{"a": 1}\n{"a": ', b'{"a": 1}\n[1]\n', b"[" * 100_000 + b"\n", b'{"a": ' + b"9" * 5000 + b"}\n", b"",
])  # fmt: skip
def test_read_jsonl_refuses_broken_files(tmp_path: Path, content: bytes) -> None:
    with refuses():
        list(read_jsonl(put(tmp_path / "x.jsonl", content)))


def test_read_jsonl_refuses_an_endless_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("knot_runner.data.readers.LONGEST_LINE", 100)
    with refuses():
        list(read_jsonl(put(tmp_path / "x.jsonl", gzip.compress(b" " * 1000))))


@given(st.data())
def test_readers_never_read_half_a_row(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    folder = tmp_path_factory.mktemp("cut")
    texts = data.draw(st.lists(st.text('ab,"\n é', min_size=1, max_size=12), min_size=2, max_size=6))
    csv = b"label,text\r\n" + b"".join(b'x,"%s"\r\n' % text.replace('"', '""').encode() for text in texts)
    jsonl = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    for content, reader, ends in ((csv, read_csv, b'"\r\n'), (jsonl, read_jsonl, b"}\n")):
        at = data.draw(st.integers(1, len(content) - 1))
        path = put(folder / f"x.{reader.__name__}", content[:at])
        whole = [row["text"] for _, row in reader(put(folder / "whole", content))]
        try:
            read = [row["text"] for _, row in reader(path)]
        except UserError:
            assert not content[:at].endswith(ends)
            continue
        assert read == whole[: len(read)]  # cut between two rows: fewer rows, but never half a row


def dialogues(folder: Path, texts: str, emotions: str) -> Path:
    (folder / "dialogues_emotion_train.txt").write_text(emotions, encoding="utf-8")
    return put(folder / "dialogues_train.txt", texts.encode())


def test_read_dailydialog_joins_its_two_files(tmp_path: Path) -> None:
    path = dialogues(tmp_path, "Hi . __eou__ Oh ! __eou__\nBye __eou__ \n", "0 6 \n4\n")
    assert [(line, row["text"].strip(), row["label"], row["dialogue"]) for line, row in read_dailydialog(path)] == [
        (1, "Hi .", "0", "1"),
        (1, "Oh !", "6", "1"),
        (2, "Bye", "4", "2"),
    ]


@pytest.mark.parametrize(("texts", "emotions"), [
    ("a __eou__ b __eou__\n", "0\n"), ("a __eou__\n", "0 1\n"), ("a __eou__ b\n", "0 0\n"),
    ("a __eou__\nb __eou__\n", "0\n"), ("a __eou__\n", "0\n0\n"),
])  # fmt: skip
def test_read_dailydialog_refuses_mismatched_files(tmp_path: Path, texts: str, emotions: str) -> None:
    with refuses():
        list(read_dailydialog(dialogues(tmp_path, texts, emotions)))
