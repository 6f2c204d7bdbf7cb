"""Cuts of texts and images: every row in one part, label shares and writers kept, the same each time."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from knot_runner.config.settings.text_tasks import SplitFile
from knot_runner.data import splits
from knot_runner.data.images import Images
from knot_runner.data.splits import hold_out, limited, random_rows, stratified_rows
from knot_runner.data.tasks import Examples
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses

PAPER = SplitFile(valid=0.102, test=0.198, seed=2021)
LABEL_LISTS = st.lists(st.integers(0, 4), min_size=2, max_size=120)


def numbered(labels):
    return Examples([str(i) for i in range(len(labels))], None, np.array(labels, dtype=np.int64))


def rows_of(examples):
    return [int(text) for text in examples.texts]


@given(LABEL_LISTS, st.floats(0.05, 0.9), st.integers(0, 99))
def test_cut_splits_loses_nothing_and_repeats(labels, share, seed):
    values = np.array(labels)
    assume(0 < np.ceil(share * len(values)) < len(values))
    kept, taken = splits.cut_splits(values, share, seed)
    assert sorted([*kept, *taken]) == list(range(len(values)))
    assert (np.diff(kept) > 0).all() and (np.diff(taken) > 0).all()
    again = splits.cut_splits(values, share, seed)
    assert (again[0] == kept).all() and (again[1] == taken).all()
    if splits.can_stratify(values, share):
        for label in np.unique(values):
            count = (values == label).sum()
            assert abs((values[taken] == label).sum() - share * count) <= (1 if count == 1 else 2)
            assert count > 1 or label in values[kept]


@given(st.lists(st.integers(0, 2), min_size=30, max_size=90), st.sampled_from(["local", "transfer"]))
def test_complete_splits_cuts_pool_into_disjoint_parts(labels, role):
    made = splits.complete_splits("A", {"pool": numbered(labels)}, role, PAPER, [])
    rows = [row for part in made.values() for row in rows_of(part)]
    assert len(set(rows)) == len(rows)
    assert list(made) == (["train", "valid", "test"] if role == "local" else ["train", "valid"])
    assert role == "transfer" or sorted(rows) == list(range(len(labels)))
    same = splits.complete_splits("A", {"pool": numbered(labels)}, "local", PAPER, [])
    assert same["train"].texts == made["train"].texts  # a transfer set's texts are the pool's train part


def test_complete_splits_halves_heldout_rows():
    # Table 1: Fic 5,902 valid and 5,903 test
    parts = {"train": numbered([0, 1]), "heldout": numbered([0, 1, 2] * 7)}
    with refuses():
        splits.chunk("A", parts["train"], [0, 4])  # fewer rows than chunks
    made = splits.complete_splits("Fic", parts, "local", PAPER, [])
    assert [len(made[key]) for key in ("train", "valid", "test")] == [2, 10, 11]
    assert sorted(rows_of(made["valid"]) + rows_of(made["test"])) == list(range(21))


@pytest.mark.parametrize(("given_parts", "role", "sizes"), [
    (["train", "valid", "test"], "local", [1000, 1000, 1000]),
    (["train", "test"], "local", [872, 128, 1000]),  # .102 / .802
    (["train", "valid"], "local", [779, 1000, 221]),  # .198 / .898
    (["train"], "local", [700, 102, 198]), (["train"], "transfer", [872, 128]),
    (["train", "valid"], "transfer", [1000, 1000]),
])  # fmt: skip
def test_complete_splits_cuts_absent_splits_from_train(given_parts, role, sizes):
    made = splits.complete_splits("A", {key: numbered([0, 1] * 500) for key in given_parts}, role, PAPER, [])
    assert [len(part) for part in made.values()] == sizes


def test_complete_splits_keeps_rare_labels_in_train():
    notes = []
    made = splits.complete_splits("A", {"pool": numbered([0] * 60 + [1] * 30 + [2])}, "local", PAPER, notes)
    assert 2 in made["train"].labels and notes == []
    splits.complete_splits("A", {"pool": numbered([0] * 6 + [1] * 2 + [2] * 2)}, "local", PAPER, notes)
    assert notes and all("some labels have too few rows" in note for note in notes)
    no_test = SplitFile(valid=0.1, test=0.0, seed=1)
    assert len(splits.complete_splits("T", {"pool": numbered([0] * 50)}, "transfer", no_test, [])["train"]) == 45
    for labels, split in (([0], PAPER), ([0] * 50, no_test)):
        with refuses():
            splits.complete_splits("A", {"pool": numbered(labels)}, "local", split, [])


@pytest.mark.parametrize("names", [{"pool", "test"}, {"test"}, {"train", "heldout", "test"}, set(), {"trian"}])
def test_check_layout_refuses(names):
    with refuses():
        splits.check_layout("x", names)


@given(st.integers(1, 200), st.integers(1, 9))
def test_chunk_is_consecutive_and_covers(rows, count):
    assume(rows >= count)
    parts = [rows_of(splits.chunk("A", numbered([0] * rows), [i, count])) for i in range(count)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(LABEL_LISTS, st.integers(1, 130), st.integers(0, 9))
def test_limit_keeps_label_shares(labels, most, seed):
    examples = numbered(labels)
    made = splits.limit(examples, most, seed)
    assert len(made) == min(most, len(labels))
    assert rows_of(made) == sorted(set(rows_of(made))) == rows_of(splits.limit(examples, most, seed))
    for label in set(labels):
        exact = labels.count(label) * len(made) / len(labels)
        assert abs((made.labels == label).sum() - exact) < 1


SHARES, SEEDS = st.floats(0.01, 0.99), st.integers(0, 2**32 - 1)


def as_scikit_learn(count, share, seed, labels):
    parts = train_test_split(np.arange(count), test_size=share, random_state=seed, stratify=labels)
    return [sorted(part.tolist()) for part in parts]


@given(st.integers(2, 300), SHARES, SEEDS)
def test_random_rows_equal_scikit_learn(count, share, seed):
    assume(0 < np.ceil(share * count) < count)
    assert random_rows(count, share, seed).tolist() == as_scikit_learn(count, share, seed, None)[1]


@settings(max_examples=60)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), SHARES, SEEDS, st.data())
def test_stratified_rows_match_scikit_learn(counts, share, seed, data):
    """Equal counts among ``counts`` make remainders that tie, whose places are drawn."""
    total = sum(counts)
    taken = int(np.ceil(share * total))
    assume(min(taken, total - taken) >= len(counts))
    labels = np.random.default_rng(data.draw(SEEDS)).permutation(np.repeat(np.arange(len(counts)) * 3 - 2, counts))
    assert stratified_rows(labels, share, seed).tolist() == as_scikit_learn(total, share, seed, labels)[1]


def numbered_images(labels, users=None):
    """Images whose only pixel is their number, so that each can be followed."""
    pixels = np.arange(len(labels), dtype=np.float32).reshape(-1, 1, 1, 1)
    known = None if users is None else np.array(users)
    return Images(pixels, np.array(labels, dtype=np.int64), known, known)


def numbers(images):
    return images.pixels.ravel().astype(int).tolist()


@given(users=st.lists(st.integers(0, 5), min_size=2, max_size=60), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_hold_out_keeps_writers_on_both_sides(users, share, seed):
    counts = np.bincount(users)
    images = numbered_images([0] * len(users), users)
    if counts.max() < 2:
        with pytest.raises(UserError, match="no writer has two images"):
            hold_out(images, share, seed)
        return
    train, test = hold_out(images, share, seed)
    assert sorted(numbers(train) + numbers(test)) == list(range(len(users)))
    assert numbers(train) == sorted(numbers(train)) and numbers(test) == sorted(numbers(test))
    assert (test.users == np.array(users)[numbers(test)]).all() and (test.files == test.users).all()
    for user, count in enumerate(counts):
        held = int((test.users == user).sum())
        assert held == (0 if count < 2 else min(max(round(count * share), 1), count - 1))


def test_hold_out_keeps_label_shares_without_writers():
    train, test = hold_out(numbered_images([0] * 80 + [1] * 20), 0.25, 3)
    assert np.bincount(test.labels).tolist() == [20, 5] and np.bincount(train.labels).tolist() == [60, 15]
    with refuses():
        hold_out(numbered_images([0]), 0.5, 3)


def test_limited_keeps_shares_and_writers():
    train, test = numbered_images([0] * 60 + [1] * 40, [i % 7 for i in range(100)]), numbered_images([0] * 12 + [1] * 8)
    small, tested = limited(train, test, 50, 1)
    assert np.bincount(small.labels).tolist() == [30, 20] and np.bincount(tested.labels).tolist() == [6, 4]
    assert small.users.tolist() == [i % 7 for i in numbers(small)] and numbers(small) == sorted(numbers(small))
    assert limited(train, test, 100, 1) == (train, test)
    assert len(limited(train, numbered_images([0]), 10, 1)[1]) == 1
    assert numbers(limited(train, test, 50, 2)[0]) != numbers(small)
