"""A task's texts as one pool of labelled examples."""

import numpy as np

from knot_runner.config.settings import Labels
from knot_runner.data.pools import pool_texts
from knot_runner.data.tasks import Dataset, Examples, PartyTask


def part(name, labels, pairs=False):
    texts = [f"{name} {i}" for i in range(len(labels))]
    return Examples(texts, [f"{text}?" for text in texts] if pairs else None, np.array(labels))


def task(pairs=False):
    """Two labelled data sets of unequal sizes, and the transfer set."""
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


def test_labelled_data_sets_are_joined_in_order_and_the_transfer_set_is_left_out():
    pool = pool_texts(task())
    assert pool.user_names == ["a", "g"] and pool.classes == ["no", "yes"] and pool.coordinates == [[0.0], [1.0]]
    assert (
        pool.train.examples.texts == ["a-train 0", "a-train 1", "a-train 2", "g-train 0"]
        and pool.train.examples.pairs is None
    )
    assert pool.train.labels.tolist() == [0, 1, 1, 1] and pool.train.users.tolist() == [0, 0, 0, 1]
    assert pool.test.labels.tolist() == [1, 0, 0] and pool.test.users.tolist() == [0, 1, 1] and len(pool.test) == 3
    assert pool.notes == ["a note"] and pool.source == "local" and pool.digest == task().digest


def test_pairs_stay_with_their_texts():
    examples = pool_texts(task(pairs=True)).train.examples
    assert examples.pairs == [f"{text}?" for text in examples.texts] and len(examples) == 4
