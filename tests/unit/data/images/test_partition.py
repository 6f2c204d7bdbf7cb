"""Partitions: what holds for all, small ones by hand, published figures, refusals."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from knot_runner.config.settings.partition import (
    Centralized,
    Dirichlet,
    DirichletClients,
    Iid,
    Manual,
    Natural,
    Pairs,
    Shards,
)
from knot_runner.data.images import make_partition
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.data.images.deals import balanced, counts, images, natural, same, task

CLASSES = 5
SETTINGS = st.one_of(
    st.builds(Natural, st.just("natural"), st.sampled_from(["user", "file"]), st.integers(1, 4), st.none(),
              st.floats(0.01, 50), st.integers(1, 6)),
    st.builds(Iid, st.just("iid"), st.integers(1, 12)),
    st.builds(Dirichlet, st.just("dirichlet"), st.integers(1, 8), st.floats(0.01, 100), st.integers(0, 2)),
    st.builds(DirichletClients, st.just("dirichlet_clients"), st.integers(1, 12), st.floats(0.001, 100)),
    st.builds(Shards, st.just("shards"), st.integers(1, 6), st.integers(1, 3)),
    st.builds(Pairs, st.just("pairs"), st.integers(4, 9), st.sampled_from([[[0, 1], [2, 3]], [[4], [0, 2]]])),
    st.builds(Manual, st.just("manual"), st.integers(1, 8), st.integers(1, CLASSES), st.floats(-1, 3),
              st.floats(0, 2), st.integers(1, 20)),
    st.builds(Centralized, st.just("centralized")),
)  # fmt: skip


@st.composite
def tasks(draw):
    """Random labels (classes may be rare, or only in test), with or without writers and files."""

    def part(least):
        labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=least, max_size=60))
        users = draw(st.lists(st.integers(0, 6), min_size=len(labels), max_size=len(labels)))
        return images(labels, np.array(users) if known else None)

    known = draw(st.booleans())
    return task(part(8), part(0), CLASSES)


@given(SETTINGS, tasks(), st.integers(0, 5))
def test_partitions_of_any_task_are_sound(spec, made, seed):
    expected = fits(spec, made)
    try:
        partition = make_partition(spec, made, seed)
    except UserError as problem:
        assert not expected and str(problem).startswith("partition.") and "\n" not in str(problem)
        return
    assert expected in (True, None)
    assert len(partition.names) == len(set(partition.names)) == len(partition.train) == len(partition.test)
    for part, source in ((partition.train, made.train), (partition.test, made.test)):
        for rows in part:
            assert rows.dtype == np.int64 and (np.diff(rows) > 0).all()  # ascending, none twice
            assert len(rows) == 0 or (rows[0] >= 0 and rows[-1] < len(source))
    assert all(len(rows) for rows in partition.train)
    assert same(partition, make_partition(spec, made, seed))
    everyone = np.sort(np.concatenate(partition.train))
    if not isinstance(spec, Manual):
        assert len(np.unique(everyone)) == len(everyone)
    if isinstance(spec, Iid | Dirichlet | DirichletClients | Shards | Centralized):
        assert np.array_equal(everyone, np.arange(len(made.train)))
        assert np.array_equal(np.sort(np.concatenate(partition.test)), np.arange(len(made.test)))
        check_test_follows_train(partition, made)
        if isinstance(spec, Iid | DirichletClients | Shards):
            most = spec.shards_per_client if isinstance(spec, Shards) else 1
            assert np.ptp([len(rows) for rows in partition.train]) <= most


def fits(spec, made):
    """Whether a partition is accepted; None where the draw decides."""
    clients, sizes = getattr(spec, "num_clients", None) or 1, np.bincount(made.train.labels)
    if isinstance(spec, Natural):
        if spec.by == "file" or made.train.users is None:  # no file is named
            return False
        return bool(np.bincount(made.train.users).max() >= spec.least)
    if isinstance(spec, Shards):
        return clients * spec.shards_per_client <= len(made.train)
    if isinstance(spec, Dirichlet):
        enough = spec.floor * clients <= sizes[sizes > 0].min() and clients <= len(made.train)
        return None if enough and not spec.floor else bool(enough)
    if isinstance(spec, Pairs | Manual):
        return None
    return clients <= len(made.train)


def check_test_follows_train(partition, made):
    """Each client's test images of a class are its share of the class's training images, up to one."""
    train = counts(partition.train, made.train.labels, CLASSES)
    test = counts(partition.test, made.test.labels, CLASSES)
    trained = train.sum(0) > 0
    exact = train[:, trained] / train.sum(0)[trained] * test.sum(0)[trained]
    assert (np.abs(test[:, trained] - exact) < 1).all()
    assert (test[:, trained][train[:, trained] == 0] == 0).all()


def dealt(spec, made, seed=0):
    """Training examples of each class [clients, classes] of a partition."""
    return counts(make_partition(spec, made, seed).train, made.train.labels, len(made.classes))


def test_dirichlet_matches_sizes_of_public_code():
    """FLex&Chill's code: class share .32 at alpha .5, floor 10, 50 clients, sizes of hundreds to about 2,000."""
    shares, sizes = [], []
    made = balanced(5000, 1000)
    for seed in range(5):
        table = dealt(Dirichlet("dirichlet", 50, 0.5, 10), made, seed)
        shares.append((table.max(1) / table.sum(1)).mean())
        sizes.append(table.sum(1))
    assert 0.30 < np.mean(shares) < 0.36
    assert np.mean(sizes) == 1000 and 200 < np.min(sizes) < 500 and 1700 < np.max(sizes) < 3000


WRITERS = task(images([0, 1, 1], np.array([0, 0, 1])), images([0, 1], np.array([0, 1])))
REFUSED = [
    (Dirichlet("dirichlet", 50, 0.5, 10), balanced(40, 10)), (Dirichlet("dirichlet", 30, 0.01, 0), balanced(10, 1)),
    (Iid("iid", 101), balanced(10, 1)), (Shards("shards", 51, 2), balanced(10, 1)),
    (Pairs("pairs", 4, [[0], [10]]), balanced(10, 1)), (Pairs("pairs", 9, [[0], [1]]), balanced(2, 1)),
    (Manual("manual", 4, 11, 1.0, 1.0, 1), balanced(10, 1)), (natural(), balanced(10, 1)),
    (natural(by="file"), balanced(10, 1)), (natural(num_clients=3), WRITERS), (natural(least=5), WRITERS),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "made"), REFUSED)
def test_make_partition_refuses(spec, made):
    with refuses():
        make_partition(spec, made, 0)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(5, 300))
def test_dirichlet_accepts_floor_named_in_refusal(clients, floor, size):
    spec = Dirichlet("dirichlet", clients, 5.0, floor)
    try:
        make_partition(spec, balanced(size, 1), 0)
        assert floor * clients <= size
    except UserError as problem:
        assume("partition.floor:" in str(problem))
        named = int(str(problem).split("partition.floor=")[1].split()[0])
        assert named < floor
        if named:
            make_partition(replace(spec, floor=named), balanced(size, 1), 0)


def test_shards_by_hand():
    """12 images of 3 classes in 6 shards of 2, all within a class: 2 shards a client."""
    made = task(images([0, 1, 2] * 4), images([0, 1, 2] * 2), 3)
    tables = [dealt(Shards("shards", 3, 2), made, seed) for seed in range(20)]
    for train in tables:
        assert (train.sum(1) == 4).all() and (train % 2 == 0).all() and ((train > 0).sum(1) <= 2).all()
    assert len({train.tobytes() for train in tables}) > 3  # which shards, too, is drawn


def test_pairs_by_hand():
    made = task(images([0] * 12 + [1] * 24 + [2] * 6 + [3] * 6 + [4] * 5), images([0, 1, 2, 3, 4] * 6), 5)
    partition = make_partition(Pairs("pairs", 4, [[0, 1], [2, 3]]), made, 0)
    assert partition.groups == [0, 0, 1, 1]
    assert counts(partition.train, made.train.labels, 5).tolist() == [[6, 12, 0, 0, 0]] * 2 + [[0, 0, 3, 3, 0]] * 2
    assert counts(partition.test, made.test.labels, 5).tolist() == [[3, 3, 0, 0, 0]] * 2 + [[0, 0, 3, 3, 0]] * 2
    assert partition.notes == [
        "partition.groups: left out 5 training examples and 6 test examples, whose classes are in no group"
    ]


@given(st.integers(10, 40), st.integers(0, 99))
def test_pairs_deal_group_classes_in_equal_shares(clients, seed):
    groups = [[2 * k, 2 * k + 1] for k in range(5)]
    made = balanced(60, 13)
    partition = make_partition(Pairs("pairs", clients, groups), made, seed)
    assert len(partition.groups) == clients and np.bincount(partition.groups, minlength=5).min() >= 2
    for part, source in ((partition.train, made.train), (partition.test, made.test)):
        table = counts(part, source.labels)
        for number, group in enumerate(groups):
            mine = np.array(partition.groups) == number
            assert (np.ptp(table[np.ix_(mine, group)], axis=0) <= 1).all()
            assert not table[np.ix_(~mine, group)].any()


def test_dirichlet_approaches_iid_and_respects_floor_of_classes_with_images():
    made = balanced(500, 50)
    assert np.abs(dealt(Dirichlet("dirichlet", 10, 1e6, 0), made) - 50).max() <= 1
    for floor in (1, 10, 40):
        table = dealt(Dirichlet("dirichlet", 10, 0.05, floor), made)
        assert table.min() >= floor and table.max() > 3 * floor
    table = dealt(Dirichlet("dirichlet", 4, 0.1, 3), task(images(np.repeat([2, 5], 30)), images([2, 5])))
    assert table[:, [2, 5]].min() >= 3 and table.sum() == 60


def test_client_wise_dirichlet_approaches_and_prefers_frequent_classes():
    """One class of 90%: most clients have it alone, and few the rest. With equal wants all would have some of each."""
    made = task(images(np.repeat([0, 1, 2], [6000, 3000, 1000])), images([0, 1, 2]), 3)
    wide = dealt(DirichletClients("dirichlet_clients", 5, 1e6), made)
    assert np.abs(wide / 2000 - [0.6, 0.3, 0.1]).max() < 0.05  # five standard errors of a multinomial draw
    made = task(images(np.concatenate([np.zeros(1800), np.repeat(np.arange(1, 11), 20)])), images([0]), 11)
    table = dealt(DirichletClients("dirichlet_clients", 20, 0.02), made)
    assert np.median(table[:, 0]) >= 95 and table[:, 0].min() < 20


def test_dirichlet_draws_which_images_of_a_class():
    made = task(images([0] * 40), images([0] * 40), 1 + 1)
    for spec in (Dirichlet("dirichlet", 2, 1e6, 0), DirichletClients("dirichlet_clients", 2, 1.0)):
        parts = [make_partition(spec, made, seed) for seed in range(3)]
        assert len({rows.tobytes() for part in parts for rows in (part.train[0], part.test[0])}) == 6


def test_manual_equals_dittos_recipe():
    """Equal sizes (sigma 0), so that client u has 2000 / 8 images: classes u, u+1, u+2 mod 10."""
    made = balanced(200, 40)
    partition = make_partition(Manual("manual", 8, 3, 3.0, 0.0, 10), made, 0)
    train, test = counts(partition.train, made.train.labels), counts(partition.test, made.test.labels)
    for client in range(8):
        held = sorted((client + j) % 10 for j in range(3))
        assert np.flatnonzero(train[client]).tolist() == np.flatnonzero(test[client]).tolist() == held
    # int(share * 250) + 1 of each class, capped at the class: sums are 250 + 1..3, where no class was capped
    free = train.max(1) < 200
    assert free.any() and set(train.sum(1)[free]) <= {251, 252, 253}
    # int(n / 6) + 1 of the test set; n is the training count less one and a fraction
    low, high = (train - 1) // 6 + 1, train // 6 + 1
    inside = (test >= np.minimum(low, 40)) & (test <= np.minimum(high, 40))
    assert inside[(train > 0) & (train < 200)].all()


def test_manual_goes_through_a_class_in_order_and_repeats_it():
    """Seven clients with int(10 / 7) + 1 = 2 of 10 images: five use them up, the next two begin again."""
    made = task(images([0] * 10), images([0] * 3), 2)
    partition = make_partition(Manual("manual", 7, 1, 1.0, 0.0, 1), made, 0)
    rows = [tuple(part) for part in partition.train]
    assert len({k for part in rows[:5] for k in part}) == 10 and rows[5:] == rows[:2]
    rows = [tuple(part) for part in partition.test]  # int(10 / 7 / 6) + 1 = 1 of 3
    assert len(set(rows[:3])) == 3 and rows[3:6] == rows[:3] and rows[6] == rows[0]
    made = task(images([0] * 10 + [1] * 30), images([0, 1]), 2)
    partition = make_partition(Manual("manual", 6, 2, 1.0, 0.5, 1), made, 1)
    uses = np.bincount(np.concatenate(partition.train), minlength=40)
    several, none = int((uses > 1).sum()), int((uses == 0).sum())
    assert several > 0
    assert partition.notes == [
        f"partition: of 40 training examples, {several} are at several clients, {none} at no client"
    ]


def test_manual_counts_classes_with_images_only():
    table = dealt(Manual("manual", 4, 2, 1.0, 0.0, 1), task(images([3] * 20 + [7] * 20 + [9] * 20), images([3, 7, 9])))
    assert [np.flatnonzero(row).tolist() for row in table] == [[3, 7], [7, 9], [3, 9], [3, 7]]


def test_natural_by_hand():
    train = images([0, 1, 0, 1, 0, 1], np.array([4, 4, 2, 2, 2, 9]), np.array([0, 0, 1, 1, 1, 0]))
    test = images([0, 1, 1], np.array([2, 4, 5]), np.array([1, 0, 0]))
    names = {"user_names": [f"w{k}" for k in range(10)], "file_names": ["a.json", "b.json"]}
    made = task(train, test, 2, **names)
    by_user = make_partition(natural(), made, 0)
    assert by_user.names == ["w2", "w4", "w9"]
    assert [rows.tolist() for rows in by_user.train] == [[2, 3, 4], [0, 1], [5]]
    assert [rows.tolist() for rows in by_user.test] == [[0], [1], []]
    assert by_user.notes == ["partition: left out 1 test example of writers without training examples"]
    by_file = make_partition(natural(by="file"), made, 0)
    assert by_file.names == ["a.json", "b.json"]
    assert [rows.tolist() for rows in by_file.train] == [[0, 1, 5], [2, 3, 4]]
    assert [rows.tolist() for rows in by_file.test] == [[1, 2], [0]]
    large = make_partition(natural(least=2), made, 0)
    assert large.names == ["w2", "w4"]
    assert "partition.least=2: left out 1 of 3 writers, which have fewer training examples" in large.notes
    drawn = {tuple(make_partition(natural(num_clients=2), made, seed).names) for seed in range(20)}
    assert drawn == {("w2", "w4"), ("w2", "w9"), ("w4", "w9")}


def test_partitions_without_writers_or_training_classes_say_how_they_divide():
    made = task(images([0, 0, 1, 1], np.array([0, 0, 1, 1])), images([1, 1, 0]), 2)
    partition = make_partition(natural(), made, 0)
    assert [rows.tolist() for rows in partition.test] == [[2], [0, 1]]
    assert partition.notes == [
        "partition: the test examples have no writers, so clients get them in proportion to their training classes"
    ]
    partition = make_partition(natural(), dataclasses.replace(balanced(60, 6), source="embedded"), 0)
    assert len(partition.train) == 4
    assert partition.notes == [
        "partition: t (embedded) has no writers, so the examples are divided over 4 clients by Dirichlet(0.5) shares"
    ]
    made = task(images([0] * 30), images([0] * 3 + [1] * 12), 2)
    partition = make_partition(Iid("iid", 3), made, 0)
    assert counts(partition.test, made.test.labels, 2).tolist() == [[1, 4]] * 3
    assert partition.notes == [
        "partition: classes without training examples: c1. Their test examples are assigned in proportion to client "
        "sizes"
    ]


def test_dirichlet_test_shares_of_many_classes_add_up():
    """Of 50 clients with 2 of 100 images of each class, each has 2 of 100 test images, though .02 of each class."""
    made = balanced(100, 1, classes=100)
    sizes = [len(rows) for rows in make_partition(Dirichlet("dirichlet", 50, 1e6, 0), made, 0).test]
    assert sum(sizes) == 100 and min(sizes) >= 1 and max(sizes) <= 3
