"""The published partitions' figures, settings that cannot hold, and real writers."""

from __future__ import annotations

import gzip
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from knot_runner.config.settings import (
    PARTITION_SETTINGS,
    Dirichlet,
    Iid,
    Manual,
    Pairs,
    Shards,
    build,
)
from knot_runner.data.images import ImageTask, make_partition
from knot_runner.util.errors import UserError
from tests.golden.messages import refuses
from tests.unit.data.images.deals import balanced, counts, images, natural, own_keys, task


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
        assert min(len(rows) for rows in partition.test) > 0, asdict(spec)
    with np.load(folder / "writer_ids_from_qmnist.npz") as ids:
        writers = ids["writer"][: len(train)]
        assert np.array_equal(ids["labels"][: len(train)], train)
    partition = make_partition(natural(), task(images(train, writers), images(test)), 0)
    assert len(partition.train) == len(set(writers.tolist()))
    assert all(len(set(writers[rows].tolist())) == 1 for rows in partition.train)
