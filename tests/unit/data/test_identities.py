"""Dialogues, speakers and filters are compared by the whole value; pandas' groups are the oracle."""

from __future__ import annotations

from typing import Any

import pandas
import pytest

from knot_runner.data.load import load_task
from knot_runner.data.pools import pool_texts
from knot_runner.data.rows import identity
from tests.golden.messages import refuses
from tests.unit.data.text_tasks import write_jsonl

LONG = "an address of a dialogue that says nothing of it in its first eighty characters, but: "
#: case -> values of the columns "one" and "two" per row, and the columns of the id
IDENTITIES: dict[str, tuple[list[tuple[Any, Any]], Any]] = {
    "differ after 80 characters": ([(f"{LONG}{k}", 0) for k in "aabcad"], "one"),
    "versions": ([(value, 0) for value in ("gpt-4.0", "gpt-4", "v1.0", "v1", "1.2.0", "1.2", "gpt-4")], "one"),
    "integers and floats": ([(value, 0) for value in (1, 1.0, 2, 2.0, 2.5, 10**16, 1e16, -3.0, -3)], "one"),
    "missing": ([(value, 0) for value in ("a", None, float("nan"), "b", "a")], "one"),
    "leading zeros": ([(value, 0) for value in ("007", "07", "7", "007")], "one"),
    "case and accents": ([(value, 0) for value in ("Ann", "ann", "Änn", "Ann")], "one"),
    "two columns": ([("a", 1), ("a", 2), ("b", 1), ("a", 1.0), ("b", None)], ["one", "two"]),
    "slashes": ([("a / b", "c"), ("a", "b / c"), ("a/", "b"), ("a", "/b"), ("a / b", "c")], ["one", "two"]),
    "one of a list": ([("x", 0), ("y", 1), ("x", 2)], ["one"]),
}


@pytest.mark.parametrize("blank", ["", "  ", None, float("nan")])
def test_blank_cell_is_no_identity(blank: Any) -> None:
    assert identity(blank) is None and identity(" Ann ") == "Ann" and identity(0) == "0"


def load(task_dict, make, folder, rows: list[tuple[Any, Any]], columns: dict[str, Any], **changes: Any):
    """The task whose data set A has ``rows`` (columns one and two) as train, in order, and as test."""
    records = [
        {"text": f"text {i}", "label": ("good", "bad")[i % 2], "one": one, "two": two}
        for i, (one, two) in enumerate(rows)
    ]
    for part in ("train", "valid", "test"):
        write_jsonl(folder / f"{part}.jsonl", [{**record, "text": f"{part} {record['text']}"} for record in records])
    files = {part: [{"path": f"{part}.jsonl", **changes}] for part in ("train", "valid", "test")}
    local = {"format": "jsonl", "files": files, "columns": {"text": "text", "label": "label"} | columns}
    task_dict["datasets"]["A"]["local"] = local
    for name in "GT":
        task_dict["datasets"][name]["local"]["columns"]["dialogue"] = "text"
    return load_task(make(task_dict | {"context": 9 if "dialogue" in columns else 0}), folder)


def groups(rows: list[tuple[Any, Any]], column: str | list[str]) -> list[int]:
    """Each row's group, numbered by its first row; -1 for a row that lacks a value."""
    frame = pandas.DataFrame(rows, columns=["one", "two"], dtype=object)
    return frame.groupby(column, sort=False).ngroup().fillna(-1).astype(int).tolist()


@pytest.mark.parametrize("case", IDENTITIES)
def test_speaker_is_the_whole_value(task_dict, make, folder, case: str) -> None:
    rows, column = IDENTITIES[case]
    pool = pool_texts(load(task_dict, make, folder, rows, {"clients": {"speaker": column}}), "speaker")
    assert pool.train.users[: len(rows)].tolist() == groups(rows, column)
    assert pool.test.users[: len(rows)].tolist() == groups(rows, column)  # a speaker is one in all files


@pytest.mark.parametrize("case", IDENTITIES)
def test_dialogue_ids_agree_between_contexts_and_clients(task_dict, make, folder, case: str) -> None:
    rows, column = IDENTITIES[case]
    rows = [row for _, row in sorted(zip(groups(rows, column), rows, strict=True), key=lambda pair: pair[0])]
    task = load(task_dict, make, folder, rows, {"dialogue": column})
    numbers = groups(rows, column)
    assert pool_texts(task, "dialogue").train.users[: len(rows)].tolist() == numbers
    lengths = [text.count("[SEP]") for text in task.datasets["A"].splits["train"].texts]
    assert lengths == [numbers[:i].count(own) if own >= 0 else 0 for i, own in enumerate(numbers)]
    without = sum(number < 0 for number in numbers)
    counts = {0: [], 1: ["A: 3 rows"], 2: ["A: 6 rows"]}[without]
    assert task.notes == [f"{count} without a dialogue id are used without context" for count in counts]


@pytest.mark.parametrize(("column", "dialogues", "repeated"), [(["one", "two"], 520, 0), ("two", 520, 465)])
def test_restarting_dialogue_numbers_are_told_apart(task_dict, make, folder, column, dialogues, repeated):
    """Nine episodes of 55 dialogues and one of 25, numbered from 0 in each; two utterances in each dialogue."""
    rows = [(number // 55, number % 55) for number in range(520) for _ in range(2)]
    task = load(task_dict, make, folder, rows, {"dialogue": column})
    pool, texts = pool_texts(task, "dialogue"), task.datasets["A"].splits["train"].texts
    assert len(set(pool.train.users[: len(rows)])) == sum("[SEP]" not in text for text in texts) == dialogues
    assert len(set(pool.user_names)) == len(pool.user_names)
    notes = [note for note in task.notes if "with the id of an earlier one" in note]
    assert [note.split()[:2] for note in notes] == ([["A:", str(3 * repeated)]] if repeated else [])


@pytest.mark.parametrize(("value", "kept"), [
    ("gpt-4", [1]), ("gpt-4.0", [0]), (LONG + "a", [2]), ([LONG + "a", LONG + "b"], [2, 3]), (7, [4, 5, 6]),
    ("7", [4, 5, 6]), (7.0, [4, 5, 6]), (None, [7]), ("None", [8]),
])  # fmt: skip
def test_filter_compares_the_whole_value(task_dict, make, folder, value, kept: list[int]) -> None:
    values = ["gpt-4.0", "gpt-4", LONG + "a", LONG + "b", 7, 7.0, "7.0", None, "None"]
    task = load(task_dict, make, folder, [(one, 0) for one in values], {}, where={"one": value})
    assert [text.split()[-1] for text in task.datasets["A"].splits["train"].texts] == [str(i) for i in kept]


@pytest.mark.parametrize("columns", [
    {"dialogue": []}, {"dialogue": ["one", "tow"]}, {"clients": {"speaker": []}}, {"dialogue": 3},
])  # fmt: skip
def test_columns_of_an_id_are_checked(task_dict, make, folder, columns) -> None:
    with refuses():
        load(task_dict, make, folder, [("a", 0)], columns)
