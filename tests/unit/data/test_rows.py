"""Columns, contexts and labels."""

from __future__ import annotations

import numpy as np
import pytest

from knot_runner.config.settings.text_tasks import DatasetSettings, Labels, TextColumns
from knot_runner.config.strict import build
from knot_runner.data.rows import check_raw_labels, raw_label, read_table, table_notes, to_examples, with_context
from tests.golden.messages import refuses

LABELS = Labels(["sad", "calm", "glad"], [[-1.0], [0.0], [1.0]], "semantic")
TALK = TextColumns(text="said", label="mood", dialogue="id")


def records(*rows: tuple) -> list[tuple[int, dict]]:
    return [(i, {"said": said, "mood": mood, "id": talk}) for i, (said, mood, talk) in enumerate(rows, 2)]


def data(**changes) -> DatasetSettings:
    return DatasetSettings(**{"role": "local", "labels": {"g": "glad", "s": "sad", "c": "calm"}} | changes)


@pytest.mark.parametrize(("raw", "label"), [
    (5.0, "5"), ("5.0", "5"), (5, "5"), (" joy ", "joy"), (None, "None"), (-1, "-1"), ("v1.0x", "v1.0x"), (4.5, "4.5"),
])  # fmt: skip
def test_raw_label_normalizes_numbers_and_spaces(raw, label: str) -> None:
    assert raw_label(raw) == label


def test_contexts_by_hand() -> None:
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


def test_to_examples_takes_clients_from_columns() -> None:
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


def test_columns_refuse_a_known_name_for_clients() -> None:
    with refuses():
        build(TextColumns, {"text": "said", "clients": {"dialogue": "id"}}, "task.datasets.A.local.columns")


def test_to_examples_restarts_dialogues_in_every_file() -> None:
    first, second = (read_table(name, records((name, "s", 0)), TALK, {}) for name in ("one", "two"))
    assert to_examples([first, second], "A", data(), LABELS, context=3).texts == ["one", "two"]


def test_read_table_counts_rows_without_text() -> None:
    rows = records(("a", "s", 0), ("  ", "s", 0), (None, "s", 0), (float("nan"), "s", 0))
    table = read_table("x.csv", rows, TALK, {})
    assert [row.text for row in table.rows] == ["a"]
    assert list(table_notes("A", [table])) == ["A: 3 rows without text are left out"]
    assert list(table_notes("A", [read_table("x.csv", records(("a", "s", 0)), TALK, {})])) == []


def test_read_table_checks_the_number_of_rows() -> None:
    rows = records(("a", "s", 0), ("", "s", 0))
    assert len(read_table("x.csv", rows, TALK, {}, expected=2).rows) == 1
    for wrong in (1, 3):
        with refuses():
            read_table("x.csv", rows, TALK, {}, expected=wrong)


def test_read_table_filters_rows() -> None:
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
def test_read_table_refuses(rows, columns: TextColumns) -> None:
    with refuses():
        read_table("x", rows, columns, {})


@pytest.mark.parametrize("label", ["C", "-1", None, "nan", "gl"])
def test_to_examples_refuses_unknown_labels(label) -> None:
    table = read_table("x.csv", records(("a", "s", 0), ("b", label, 0)), TALK, {})
    with refuses():
        to_examples([table], "A", data(), LABELS, context=0)
    assert len(to_examples([table], "A", data(drop=[str(label)]), LABELS, context=0)) == 1


@pytest.mark.parametrize("changes", [{"labels": {"h": "gladd"}}, {"drop": ["s"]}])
def test_check_raw_labels_refuses(changes) -> None:
    with refuses():
        check_raw_labels("A", data(**changes), LABELS)


def test_read_table_replaces_lone_surrogates() -> None:
    table = read_table("x", records(("a\ud800", "s", 0)), TALK, {})
    assert to_examples([table], "A", data(), LABELS, 0).digest  # would raise if the text could not be encoded
    assert table.rows[0].text == "a?"
