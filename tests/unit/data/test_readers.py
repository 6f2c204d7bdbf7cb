"""Readers: what they accept, and that no broken or shortened file gets through."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from knot_runner.config.settings.text_tasks import DatasetSettings, Labels, TextColumns
from knot_runner.config.strict import build
from knot_runner.data.readers import read_csv, read_dailydialog, read_jsonl
from knot_runner.data.rows import check_raw_labels, raw_label, read_table, table_notes, to_examples, with_context
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses


def put(path, content):
    path.write_bytes(content)
    return path


def test_read_csv_handles_quotes_line_ends_and_bom(tmp_path):
    content = '\ufefftext,label\r\n"one, ""two""\r\nthree",good\r\nplain,bad\r\n'.encode()
    rows = list(read_csv(put(tmp_path / "x.csv", content)))
    assert rows == [(3, {"text": 'one, "two"\r\nthree', "label": "good"}), (4, {"text": "plain", "label": "bad"})]


@pytest.mark.parametrize(("content", "delimiter", "row"), [
    (b'text;label\n"one; two, three";good\n', ";", {"text": "one; two, three", "label": "good"}),
    (b"a;b,text|x\n1,2\n", ",", {"a;b": "1", "text|x": "2"}),
])  # fmt: skip
def test_read_csv_splits_at_its_delimiter_alone(tmp_path, content, delimiter, row):
    assert list(read_csv(put(tmp_path / "x.csv", content), delimiter)) == [(2, row)]


def test_read_csv_reads_long_texts(tmp_path):
    text = "long " * 40_000  # 200,000 characters; Python's own limit is 131,072
    (row,) = read_csv(put(tmp_path / "x.csv", f"text,label\n{text},good\n".encode()))
    assert row[1]["text"] == text
    path = put(tmp_path / "x.csv", b'text,label\n"' + (b"x" * (1 << 20) + b"\n") * 17 + b'",good\n')
    with refuses():
        list(read_csv(path))


def test_read_jsonl_detects_gzip_by_first_bytes(tmp_path):
    content = b'{"text": "a"}\r\n\n{"text": "b"}'
    expected = [(1, {"text": "a"}), (3, {"text": "b"})]
    assert list(read_jsonl(put(tmp_path / "plain.json.gz", content))) == expected
    assert list(read_jsonl(put(tmp_path / "packed.json", gzip.compress(content)))) == expected


@pytest.mark.parametrize("content", [
    b"", b"text,label\na,b\nc\n", b"text,label\na,b,c\n", b'text,label\na,"b\n', b'text,label\n"a"b,c\n',
    b"text,label\na,goo", b"text,label\r\na,b\r", b"text,text\na,b\n", "text,label\ncafé,b\n".encode("latin-1"),
    gzip.compress(b"text,label\n" + b"a,b\n" * 50, mtime=0)[:-9],
    "text,label\n".encode("utf-16"),
])  # fmt: skip
def test_read_csv_refuses_broken_files(tmp_path, content):
    with refuses():
        list(read_csv(put(tmp_path / "x.csv", content)))


@pytest.mark.parametrize("content", [
    b'{"a": 1}\n{"a": ', b'{"a": 1}\n[1]\n', b"[" * 100_000 + b"\n", b'{"a": ' + b"9" * 5000 + b"}\n", b"",
])  # fmt: skip
def test_read_jsonl_refuses_broken_files_and_endless_lines(tmp_path, monkeypatch, content):
    with refuses():
        list(read_jsonl(put(tmp_path / "x.jsonl", content)))
    monkeypatch.setattr("knot_runner.data.readers.LONGEST_LINE", 100)
    with refuses():
        list(read_jsonl(put(tmp_path / "x.jsonl", gzip.compress(b" " * 1000))))


@given(st.data())
def test_readers_never_read_half_a_row(tmp_path_factory, data):
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


def dialogues(folder, texts, emotions):
    (folder / "dialogues_emotion_train.txt").write_text(emotions, encoding="utf-8")
    return put(folder / "dialogues_train.txt", texts.encode())


def test_read_dailydialog_joins_its_two_files(tmp_path):
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
def test_read_dailydialog_refuses_mismatched_files(tmp_path, texts, emotions):
    with refuses():
        list(read_dailydialog(dialogues(tmp_path, texts, emotions)))


LABELS = Labels(["sad", "calm", "glad"], [[-1.0], [0.0], [1.0]], "semantic")
TALK = TextColumns(text="said", label="mood", dialogue="id")


def records(*rows):
    return [(i, {"said": said, "mood": mood, "id": talk}) for i, (said, mood, talk) in enumerate(rows, 2)]


def data(**changes):
    return DatasetSettings(**{"role": "local", "labels": {"g": "glad", "s": "sad", "c": "calm"}} | changes)


@pytest.mark.parametrize(("raw", "label"), [
    (5.0, "5"), ("5.0", "5"), (5, "5"), (" joy ", "joy"), (None, "None"), (-1, "-1"), ("v1.0x", "v1.0x"), (4.5, "4.5"),
])  # fmt: skip
def test_raw_label_normalizes_numbers_and_spaces(raw, label):
    assert raw_label(raw) == label


def test_contexts_by_hand():
    rows = records(("a", "s", 0), ("b", "x", 0), ("c", "g", 0), ("d", "c", 0), ("e", "s", 1), ("f", "s", 0))
    table = read_table("talk.csv", rows, TALK, {})
    contexts = ["a", "b [SEP] a", "c [SEP] b [SEP] a", "d [SEP] c [SEP] b", "e"]
    assert with_context(table.rows, 2) == [*contexts, "f"]  # an id that comes again is another dialogue
    without = read_table("talk.csv", records(("a", "s", None), ("b", "s", None)), TALK, {})
    assert with_context(without.rows, 2) == ["a", "b"]
    made = to_examples([table], "A", data(drop=["x"]), LABELS, context=2)
    assert made.texts == ["a", "c [SEP] b [SEP] a", "d [SEP] c [SEP] b", "e", "f"]  # b is dropped, yet said
    assert made.labels.tolist() == [0, 2, 1, 0, 0]
    plain = read_table("talk.csv", rows, TextColumns(text="said"), {})
    assert set(to_examples([plain], "T", data(role="transfer"), LABELS, context=0).labels) == {-1}
    first, second = (read_table(name, records((name, "s", 0)), TALK, {}) for name in ("one", "two"))
    assert to_examples([first, second], "A", data(), LABELS, context=3).texts == ["one", "two"]


def test_to_examples_takes_clients_from_columns():
    columns = TextColumns(text="said", label="mood", dialogue="id", clients={"speaker": "who", "place": "where"})
    rows = records(("a", "s", 0), ("b", "x", 0), ("c", "g", 1), ("d", "g", 1))
    for (_, row), who in zip(rows, (" Ann ", "", None, 7.0), strict=True):
        row["who"] = who
    table = read_table("talk.csv", rows, columns, {})  # a file without the column 'where' is read all the same
    made = to_examples([table, table], "A", data(drop=["x"]), LABELS, context=0)
    assert made.clients == {
        "speaker": ["Ann", None, "7"] * 2,
        "place": [None] * 6,
        "dialogue": ["0", "1", "1", "0 of file 2", "1 of file 2", "1 of file 2"],
    }
    part = made.take(np.array([2, 0]))
    assert part.clients["speaker"] == ["7", "Ann"] and part.texts == ["d", "a"]
    with refuses():
        build(TextColumns, {"text": "said", "clients": {"dialogue": "id"}}, "task.datasets.A.local.columns")


def test_read_table_counts_rows_without_text():
    rows = records(("a", "s", 0), ("  ", "s", 0), (None, "s", 0), (float("nan"), "s", 0))
    for wrong in (3, 5):
        with refuses():
            read_table("x.csv", rows, TALK, {}, expected=wrong)
    table = read_table("x.csv", rows, TALK, {}, expected=4)
    assert [row.text for row in table.rows] == ["a"]
    assert list(table_notes("A", [table])) == ["A: 3 rows without text are left out"]
    assert list(table_notes("A", [read_table("x.csv", records(("a", "s", 0)), TALK, {})])) == []


def test_read_table_filters_rows():
    table = read_table("x", records(("a\ud800", "s", 0)), TALK, {})
    assert table.rows[0].text == "a?"  # a lone surrogate could not be encoded
    rows = records(("a", "s", 0), ("b", "c", 1), ("c", "g", 2))
    assert [row.text for row in read_table("x", rows, TALK, {"id": 1}).rows] == ["b"]
    assert [row.text for row in read_table("x", rows, TALK, {"mood": ["s", "g", "unheard"]}).rows] == ["a", "c"]
    for wrong in ({"mood": "gg"}, {"mood": "s", "id": 2}):
        with refuses():
            read_table("x", rows, TALK, wrong)


@pytest.mark.parametrize(("rows", "columns"), [
    (records(("a", "s", 0)), TextColumns(text="sayd")),
    (records(("a", "s", 0)), TextColumns(text="said", label="lable")), ([], TALK), (records(("", "s", 0)), TALK),
    (records((["a"], "s", 0)), TALK),
])  # fmt: skip
def test_read_table_refuses(rows, columns):
    with refuses():
        read_table("x", rows, columns, {})


@pytest.mark.parametrize("label", ["C", "-1", None, "nan", "gl"])
def test_to_examples_refuses_unknown_labels(label):
    table = read_table("x.csv", records(("a", "s", 0), ("b", label, 0)), TALK, {})
    with refuses():
        to_examples([table], "A", data(), LABELS, context=0)
    assert len(to_examples([table], "A", data(drop=[str(label)]), LABELS, context=0)) == 1


@pytest.mark.parametrize("changes", [{"labels": {"h": "gladd"}}, {"drop": ["s"]}])
def test_check_raw_labels_refuses(changes):
    with refuses():
        check_raw_labels("A", data(**changes), LABELS)
