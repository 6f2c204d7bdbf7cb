"""A task's texts as one pool of labeled examples."""

import dataclasses

import numpy as np
import pytest

from knot_runner.config.settings import Labels, Natural
from knot_runner.data.images import make_partition
from knot_runner.data.pools import pool_texts
from knot_runner.data.tasks import Dataset, Examples, PartyTask
from tests.golden.messages import refuses


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


def test_pool_texts_keeps_pairs():
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
    assert dealt.notes == ["partition: 1 training and 2 test examples have no speaker and are left out"]
    large = make_partition(by("speaker", least=2), pool, 0)
    assert large.names == ["a Ann"] and "1 of 2 speakers have fewer training examples" in large.notes[-1]


def test_pool_of_dialogues_tells_data_sets_apart():
    pool = pool_texts(named(), "dialogue")
    assert pool.train.users.tolist() == [0, 0, 1, 2] and pool.test.users is None
    dealt = make_partition(by("dialogue"), pool, 0)
    assert dealt.names == ["a 0", "a 1", "g 0"] and sum(map(len, dealt.test)) == 3
    assert "the test examples have no dialogues, so they follow the training classes" in dealt.notes[0]


def test_pool_digest_includes_clients_only_on_request():
    plain, other = named(), named()
    other.datasets["a"].splits["train"].clients["speaker"][0] = "Bo"
    assert pool_texts(plain).digest == pool_texts(other).digest == task().digest
    assert pool_texts(plain, "speaker").digest != pool_texts(other, "speaker").digest


@pytest.mark.parametrize("kind", ["speakr", "genre"])
def test_pool_refuses_clients_that_no_column_names(kind):
    with refuses():
        make_partition(by(kind), pool_texts(named(), kind), 0)
