"""Examples and clients held out of training, and altered clients."""

import dataclasses

import numpy as np
import pytest

from knot_runner.data.images.held_out import alter_clients, altered_clients, hold_out_valid, unseen_clients
from knot_runner.data.tasks import Images, ImageTask, Partition
from tests.golden.messages import refuses


@pytest.mark.parametrize(("share", "counts"), [(0.25, [0, 1, 1, 2]), (0.01, [0, 1, 1, 1]), (0.99, [0, 1, 2, 9])])
def test_hold_out_valid_takes_share_but_never_all(share, counts):
    rows = [np.arange(100 * size, 101 * size) for size in (1, 2, 3, 10)]
    partition = hold_out_valid(Partition(list("abcd"), rows, rows), share, seed=0)
    assert [len(valid) for valid in partition.valid] == counts
    for train, valid, own in zip(partition.train, partition.valid, rows, strict=True):
        assert sorted([*train, *valid]) == own.tolist()
        assert (np.diff(train) > 0).all() and (np.diff(valid) > 0).all()


@pytest.mark.parametrize(("clients", "share", "count"), [(10, 0.01, 1), (10, 0.26, 3), (2, 0.5, 1), (10, 0.9, 9)])
def test_unseen_clients_returns_share_of_at_least_one(clients, share, count):
    unseen = unseen_clients(clients, share, seed=3)
    assert len(set(unseen)) == count and list(unseen) == sorted(unseen) and set(unseen) <= set(range(clients))
    with refuses():
        unseen_clients(10, 0.96, seed=0)  # one is left to train


def made(clients=6, each=20):
    """Clients in turn have the images, of classes 1, 3, 4, 7 out of ten; every fifth of theirs is held out."""
    draws = np.random.default_rng(0)
    labels = draws.choice([1, 3, 4, 7], clients * each)
    train = Images(draws.integers(0, 256, (clients * each, 1, 3, 2)).astype(np.uint8), labels)
    test = Images(draws.random((clients * 4, 1, 3, 2), dtype=np.float32), draws.choice([1, 3, 4, 9], clients * 4))
    task = ImageTask("t", [str(k) for k in range(10)], None, train, test, [0.0], [1.0], "embedded")
    rows = [np.arange(k, clients * each, clients) for k in range(clients)]
    tests = [np.arange(k, clients * 4, clients) for k in range(clients)]
    names = [f"client {k}" for k in range(clients)]
    return task, Partition(names, [own[4:] for own in rows], tests, ["dealt"], valid=[own[:4] for own in rows])


@pytest.mark.parametrize(("kind", "count"), [("conflict", 3), ("shift", 3), ("noise", 2)])
def test_alter_clients_changes_the_drawn_clients_alone(kind, count):
    task, partition = made()
    altered, dealt = alter_clients(task, partition, kind, seed=1)
    chosen = altered_clients(6, kind, 1)
    assert len(chosen) == count == sum(dealt.groups) and [dealt.groups[k] for k in chosen] == [1] * count
    assert len({tuple(altered_clients(40, kind, seed)) for seed in range(5)}) == 5
    assert altered_clients(2, kind, 0) in ([0], [1]) and len(altered_clients(10, "noise", 0)) == 3
    assert dealt.notes[0] == "dealt" and dealt.notes[1].startswith(f"partition.alter: {count} of 6 clients have")
    for client in set(range(6)) - set(chosen):
        own = np.concatenate([partition.train[client], partition.valid[client]])
        assert np.array_equal(altered.train.pixels[own], task.train.pixels[own])
        assert np.array_equal(altered.train.labels[own], task.train.labels[own])
        tests = partition.test[client]
        assert np.array_equal(altered.test.pixels[tests], task.test.pixels[tests])
        assert np.array_equal(altered.test.labels[tests], task.test.labels[tests])
    before, _ = made()
    assert task.digest == before.digest != altered.digest  # what was read is left as it was
    again, _ = alter_clients(task, partition, kind, seed=1)
    assert again.digest == altered.digest


def test_conflict_reverses_classes_of_training_and_shift_turns_images():
    task, partition = made()
    altered, dealt = alter_clients(task, partition, "conflict", seed=0)
    reverse = {1: 7, 3: 4, 4: 3, 7: 1, 9: 9}  # no training example shows 9
    for client in np.flatnonzero(dealt.groups):
        for rows in (partition.train[client], partition.valid[client]):
            assert [reverse[k] for k in task.train.labels[rows]] == altered.train.labels[rows].tolist()
        rows = partition.test[client]
        assert [reverse[k] for k in task.test.labels[rows]] == altered.test.labels[rows].tolist()
    assert np.array_equal(altered.train.pixels, task.train.pixels)
    altered, dealt = alter_clients(task, partition, "shift", seed=0)
    for client in np.flatnonzero(dealt.groups):
        for split, rows in (("train", partition.train), ("train", partition.valid), ("test", partition.test)):
            before, after = getattr(task, split).pixels, getattr(altered, split).pixels
            for row in rows[client]:
                assert np.array_equal(after[row, 0], np.rot90(before[row, 0], 2))
    assert np.array_equal(altered.train.labels, task.train.labels)
    assert np.array_equal(altered.test.labels, task.test.labels)


def test_noise_draws_training_labels_alone():
    task, partition = made(clients=6, each=400)
    altered, dealt = alter_clients(task, partition, "noise", seed=0)
    assert altered.test is task.test
    rows = np.concatenate([partition.train[client] for client in np.flatnonzero(dealt.groups)])
    values, counts = np.unique(altered.train.labels[rows], return_counts=True)
    assert values.tolist() == [1, 3, 4, 7] and counts.min() > 0.2 * len(rows)
    assert np.mean(altered.train.labels[rows] == task.train.labels[rows]) < 0.32
    other, _ = alter_clients(task, partition, "noise", seed=1)
    assert not np.array_equal(other.train.labels, altered.train.labels)


def test_alter_clients_refuses_shared_examples():
    task, partition = made()
    both = [*partition.train[:5], np.append(partition.train[5], partition.train[0][:2])]
    with refuses():
        alter_clients(task, dataclasses.replace(partition, train=both), "shift", 0)
    tested = [*partition.test[:5], np.append(partition.test[5], partition.test[0][:1])]
    tests = dataclasses.replace(partition, test=tested)
    with refuses():
        alter_clients(task, tests, "conflict", 0)
    alter_clients(task, tests, "noise", 0)  # whose test examples are as they were
    with refuses():
        alter_clients(task, Partition(["a"], [np.arange(5)], [np.arange(2)]), "shift", 0)
