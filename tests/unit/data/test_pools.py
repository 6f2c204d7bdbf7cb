"""A task's texts as one pool of labeled examples."""

import dataclasses

import numpy as np
import pandas
import pytest

from knot_runner.config.settings.partition import Natural
from knot_runner.config.settings.text_tasks import Labels
from knot_runner.data.images import make_partition
from knot_runner.data.load import load_task
from knot_runner.data.pools import pool_texts
from knot_runner.data.rows import identity
from knot_runner.data.tasks import Dataset, Examples, PartyTask
from tests.golden.messages import refuses
from tests.unit.data.text_tasks import write_jsonl


def part(name, labels, pairs=False):
    texts = [f"{name} {i}" for i in range(len(labels))]
    return Examples(texts, [f"{text}?" for text in texts] if pairs else None, np.array(labels))


def task(pairs=False):
    """Two labeled data sets of unequal sizes, and the transfer set."""
    parts = {
        "a": ("local", {"train": [0, 1, 1], "valid": [0], "test": [1]}),
        "g": ("global", {"train": [1], "valid": [1], "test": [0, 0]}),
        "x": ("transfer", {"train": [-1, -1], "valid": [-1]}),
    }
    sets = {}
    for name, (role, splits) in parts.items():
        made = {split: part(f"{name}-{split}", labels, pairs) for split, labels in splits.items()}
        sets[name] = Dataset(name, role, made)
    return PartyTask("demo", Labels(["no", "yes"], [[0.0], [1.0]], "semantic"), sets, "local", ["a note"])


def test_pool_texts_joins_labeled_data_sets():
    pool = pool_texts(task())
    assert pool.user_names == ["a", "g"] and pool.classes == ["no", "yes"] and pool.coordinates == [[0.0], [1.0]]
    examples = pool.train
    assert examples.texts == ["a-train 0", "a-train 1", "a-train 2", "g-train 0"] and examples.pairs is None
    assert pool.train.labels.tolist() == [0, 1, 1, 1] and pool.train.users.tolist() == [0, 0, 0, 1]
    assert pool.test.labels.tolist() == [1, 0, 0] and pool.test.users.tolist() == [0, 1, 1] and len(pool.test) == 3
    assert pool.notes == ["a note"] and pool.source == "local" and pool.digest == task().digest
    examples = pool_texts(task(pairs=True)).train
    assert examples.pairs == [f"{text}?" for text in examples.texts] and len(examples) == 4


def by(kind, least=1):
    return Natural("natural", kind, least, None, 0.5, 2)


def named():
    """Speakers and dialogues in data set a; in g only dialogues, with ids that a has too."""
    made = task()
    names = {
        "a": {"train": {"speaker": ["Ann", "Bo", "Ann"], "dialogue": ["0", "0", "1"]},
              "test": {"speaker": ["Ann"], "dialogue": ["0"]}},
        "g": {"train": {"dialogue": ["0"]}, "test": {"dialogue": ["0", "1"]}},
    }  # fmt: skip
    for name, splits in names.items():
        for split, clients in splits.items():
            parts = made.datasets[name].splits
            parts[split] = dataclasses.replace(parts[split], clients=clients)
    return made


def test_pool_takes_texts_with_and_without_clients():
    """Dialogues are of one file, so that test texts name none."""
    for by, has in (("speaker", True), ("dialogue", False)):
        some = pool_texts(named(), by).test.take(np.array([0]))
        assert len(some) == 1 and (some.users is not None) == has


def test_pool_of_speakers_omits_texts_without_speaker():
    pool = pool_texts(named(), "speaker")
    assert pool.user_names == ["a Ann", "a Bo"] and pool.train.users.tolist() == [0, 1, 0, -1]
    assert pool.test.users.tolist() == [0, -1, -1]
    dealt = make_partition(by("speaker"), pool, 0)
    assert dealt.names == ["a Ann", "a Bo"] and [rows.tolist() for rows in dealt.train] == [[0, 2], [1]]
    assert [rows.tolist() for rows in dealt.test] == [[0], []]
    assert dealt.notes == ["partition: left out 1 training example and 2 test examples without a speaker"]
    large = make_partition(by("speaker", least=2), pool, 0)
    assert (
        large.names == ["a Ann"] and "left out 1 of 2 speakers, which have fewer training examples" in large.notes[-1]
    )


def test_pool_of_dialogues_tells_data_sets_apart():
    pool = pool_texts(named(), "dialogue")
    assert pool.train.users.tolist() == [0, 0, 1, 2] and pool.test.users is None
    dealt = make_partition(by("dialogue"), pool, 0)
    assert dealt.names == ["a 0", "a 1", "g 0"] and sum(map(len, dealt.test)) == 3
    assert (
        "the test examples have no dialogues, so clients get them in proportion to their training classes"
        in dealt.notes[0]
    )


def test_pool_digest_includes_clients_only_on_request():
    plain, other = named(), named()
    other.datasets["a"].splits["train"].clients["speaker"][0] = "Bo"
    assert pool_texts(plain).digest == pool_texts(other).digest == task().digest
    assert pool_texts(plain, "speaker").digest != pool_texts(other, "speaker").digest


@pytest.mark.parametrize("kind", ["speakr", "genre"])
def test_pool_refuses_clients_that_no_column_names(kind):
    with refuses():
        make_partition(by(kind), pool_texts(named(), kind), 0)


LONG = "an address of a dialogue that says nothing of it in its first eighty characters, but: "
#: case -> values of the columns "one" and "two" per row, and the columns of the id
IDENTITIES = {
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


def load(task_dict, make, folder, rows, columns, **changes):
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


def groups(rows, column):
    """Each row's group, numbered by its first row; -1 for a row that lacks a value."""
    frame = pandas.DataFrame(rows, columns=["one", "two"], dtype=object)
    return frame.groupby(column, sort=False).ngroup().fillna(-1).astype(int).tolist()


@pytest.mark.parametrize("case", IDENTITIES)
def test_speaker_is_the_whole_value(task_dict, make, folder, case):
    assert [identity(cell) for cell in ("", "  ", None, float("nan"), " Ann ", 0)] == [*[None] * 4, "Ann", "0"]
    rows, column = IDENTITIES[case]
    pool = pool_texts(load(task_dict, make, folder, rows, {"clients": {"speaker": column}}), "speaker")
    assert pool.train.users[: len(rows)].tolist() == groups(rows, column)
    assert pool.test.users[: len(rows)].tolist() == groups(rows, column)  # a speaker is one in all files


@pytest.mark.parametrize("case", IDENTITIES)
def test_dialogue_ids_agree_between_contexts_and_clients(task_dict, make, folder, case):
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
def test_repeated_dialogue_numbers(task_dict, make, folder, column, dialogues, repeated):
    """Nine episodes of 55 dialogues and one of 25, numbered from 0 in each; two utterances in each dialogue."""
    rows = [(number // 55, number % 55) for number in range(520) for _ in range(2)]
    task = load(task_dict, make, folder, rows, {"dialogue": column})
    pool, texts = pool_texts(task, "dialogue"), task.datasets["A"].splits["train"].texts
    assert len(set(pool.train.users[: len(rows)])) == sum("[SEP]" not in text for text in texts) == dialogues
    assert len(set(pool.user_names)) == len(pool.user_names)
    notes = [note for note in task.notes if "with the id of an earlier dialogue" in note]
    assert [note.split()[:2] for note in notes] == ([["A:", str(3 * repeated)]] if repeated else [])


@pytest.mark.parametrize(("value", "kept"), [
    ("gpt-4", [1]), ("gpt-4.0", [0]), (LONG + "a", [2]), ([LONG + "a", LONG + "b"], [2, 3]), (7, [4, 5, 6]),
    ("7", [4, 5, 6]), (7.0, [4, 5, 6]), (None, [7]), ("None", [8]),
])  # fmt: skip
def test_filter_compares_the_whole_value(task_dict, make, folder, value, kept):
    values = ["gpt-4.0", "gpt-4", LONG + "a", LONG + "b", 7, 7.0, "7.0", None, "None"]
    task = load(task_dict, make, folder, [(one, 0) for one in values], {}, where={"one": value})
    assert [text.split()[-1] for text in task.datasets["A"].splits["train"].texts] == [str(i) for i in kept]


@pytest.mark.parametrize("columns", [
    {"dialogue": []}, {"dialogue": ["one", "tow"]}, {"clients": {"speaker": []}}, {"dialogue": 3},
])  # fmt: skip
def test_columns_of_an_id_are_checked(task_dict, make, folder, columns):
    with refuses():
        load(task_dict, make, folder, [("a", 0)], columns)
