"""Partitions: what holds for all of them, the published figures, settings that cannot hold, and real writers."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from knot_runner.config.settings import (
    PARTITION_SETTINGS,
    Centralised,
    Dirichlet,
    DirichletClients,
    Iid,
    Manual,
    Natural,
    Pairs,
    Shards,
    build,
)
from knot_runner.data.images import Images, ImageTask, Partition, make_partition
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.data.images.deals import balanced, counts, images, natural, own_keys, same, task

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
    st.builds(Centralised, st.just("centralised")),
)  # fmt: skip


@st.composite
def tasks(draw: st.DrawFn) -> ImageTask:
    """Random labels (classes may be rare, or only in test), with or without writers and files."""

    def part(least: int) -> Images:
        labels = draw(st.lists(st.integers(0, CLASSES - 1), min_size=least, max_size=60))
        users = draw(st.lists(st.integers(0, 6), min_size=len(labels), max_size=len(labels)))
        return images(labels, np.array(users) if known else None)

    known = draw(st.booleans())
    return task(part(8), part(0), CLASSES)


@given(SETTINGS, tasks(), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_partitions_of_any_task_are_sound(spec: Any, made: ImageTask, seed: int) -> None:
    try:
        partition = make_partition(spec, made, seed)
    except UserError as problem:
        assert str(problem).startswith("partition.") and "\n" not in str(problem)
        return
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
    if isinstance(spec, Iid | Dirichlet | DirichletClients | Shards | Centralised):
        assert np.array_equal(everyone, np.arange(len(made.train)))
        assert np.array_equal(np.sort(np.concatenate(partition.test)), np.arange(len(made.test)))
        check_test_follows_train(partition, made)


def check_test_follows_train(partition: Partition, made: ImageTask) -> None:
    """Each client's test images of a class are its share of the class's training images, up to one."""
    train = counts(partition.train, made.train.labels, CLASSES)
    test = counts(partition.test, made.test.labels, CLASSES)
    trained = train.sum(0) > 0
    exact = train[:, trained] / train.sum(0)[trained] * test.sum(0)[trained]
    assert (np.abs(test[:, trained] - exact) < 1).all()
    assert (test[:, trained][train[:, trained] == 0] == 0).all()


@pytest.mark.parametrize("kind", PARTITION_SETTINGS)
def test_every_kind_has_a_preset(kind: str) -> None:
    config = own_keys(kind)
    made = replace(balanced(1000, 100), source="embedded")
    partition = make_partition(build(PARTITION_SETTINGS[kind], config, "partition"), made, 0)
    assert len(partition.train) == config.get("clients") or config.get("count", 1)


def test_dirichlet_gives_the_sizes_of_the_public_code() -> None:
    """chill.md 2.2: largest class share .32 at alpha .5, floor 10, 50 clients, sizes of hundreds to about 2,000."""
    shares, sizes = [], []
    made = balanced(5000, 1000)
    for seed in range(5):
        table = counts(make_partition(Dirichlet("dirichlet", 50, 0.5, 10), made, seed).train, made.train.labels)
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
    (natural(by="file"), balanced(10, 1)), (natural(clients=3), WRITERS), (natural(least=5), WRITERS),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "made"), REFUSED)
def test_make_partition_refuses(spec: Any, made: ImageTask) -> None:
    with refuses():
        make_partition(spec, made, 0)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(5, 300))
@settings(max_examples=60, deadline=None)
def test_dirichlet_takes_the_floor_that_its_refusal_names(clients: int, floor: int, size: int) -> None:
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


@pytest.mark.real_data
def test_partitions_of_real_writers_and_digits(data_root: Path) -> None:
    """MNIST's writers (of QMNIST): one client each; and every partition of the presets on its labels."""
    folder = data_root / "mnist"
    train, test = (
        np.frombuffer(gzip.decompress((folder / f"{name}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
        for name in ("train", "t10k")
    )
    made = task(images(train), images(test))
    for kind, built in PARTITION_SETTINGS.items():
        if kind == "natural":  # needs writers, which follow below
            continue
        spec = build(built, own_keys(kind), "partition")
        partition = make_partition(spec, made, 0)
        assert min(len(rows) for rows in partition.test) > 0, kind
    with np.load(folder / "writer_ids_from_qmnist.npz") as ids:
        writers = ids["writer"][: len(train)]
        assert np.array_equal(ids["labels"][: len(train)], train)
    partition = make_partition(natural(), task(images(train, writers), images(test)), 0)
    assert len(partition.train) == len(set(writers.tolist()))
    assert all(len(set(writers[rows].tolist())) == 1 for rows in partition.train)
