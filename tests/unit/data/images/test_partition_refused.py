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
    DirichletClients,
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


def test_the_public_codes_cifar10_partition() -> None:
    """chill.md 2.2: largest class share .32 at alpha .5, floor 10, 50 clients, sizes of hundreds to about 2,000."""
    shares, sizes = [], []
    made = balanced(5000, 1000)
    for seed in range(5):
        table = counts(make_partition(Dirichlet("dirichlet", 50, 0.5, 10), made, seed).train, made.train.labels)
        shares.append((table.max(1) / table.sum(1)).mean())
        sizes.append(table.sum(1))
    assert 0.30 < np.mean(shares) < 0.36
    assert np.mean(sizes) == 1000 and 200 < np.min(sizes) < 500 and 1700 < np.max(sizes) < 3000


REFUSED = [
    (
        Dirichlet("dirichlet", 50, 0.5, 10),
        balanced(40, 10),
        r"partition\.floor: 10 examples for each of 50 clients are 500, but class c0 has 40; partition\.floor=0 would",
    ),
    (
        Dirichlet("dirichlet", 30, 0.01, 0),
        balanced(10, 1),
        r"partition\.clients: client \d+ of 30 would have no training examples \(there are 100\); .*partition\.alpha",
    ),
    (Iid("iid", 101), balanced(10, 1), r"partition\.clients: 101 are more than the 100 training examples"),
    (
        DirichletClients("dirichlet_clients", 101, 1.0),
        balanced(10, 1),
        r"partition\.clients: 101 are more than the 100 training examples",
    ),
    (Shards("shards", 51, 2), balanced(10, 1), r"partition\.shards_per_client: 51 clients x 2 are 102 shards"),
    (Pairs("pairs", 4, [[0], [10]]), balanced(10, 1), r"partition\.groups: there is no class 10; t has 0 to 9"),
    (Pairs("pairs", 9, [[0], [1]]), balanced(2, 1), r"partition\.clients: client \d+ of 9 .* groups of classes"),
    (Manual("manual", 4, 11, 1.0, 1.0, 1), balanced(10, 1), r"partition\.classes_per_client: 11 is more than the 10"),
    (natural(), balanced(10, 1), r"partition\.by=user: t \(local\) names no writers, which .* Choose partition=iid"),
    (natural(by="file"), balanced(10, 1), r"partition\.by=file: t \(local\) names no files"),
]
WRITERS = task(images([0, 1, 1], np.array([0, 0, 1])), images([0, 1], np.array([0, 1])))
REFUSED += [
    (natural(clients=3), WRITERS, r"partition\.clients: 3 is more than the 2 writers there are"),
    (natural(least=5), WRITERS, r"partition\.least: none of 2 writers has 5 training examples; the largest has 2"),
]


@pytest.mark.parametrize(("spec", "made", "message"), REFUSED)
def test_what_cannot_hold_is_refused(spec: Any, made: ImageTask, message: str) -> None:
    with refuses() as caught:
        make_partition(spec, made, 0)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 30), st.integers(1, 20), st.integers(5, 300))
@settings(max_examples=60, deadline=None)
def test_the_floor_that_a_refusal_names_fits(clients: int, floor: int, size: int) -> None:
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
def test_real_writers_and_digits(data_root: Path) -> None:
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
