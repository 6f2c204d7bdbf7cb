"""Every partition, of the package and of a plug-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from knot_runner.config.plugins import load_plugins
from knot_runner.config.settings.partition import PARTITION_SETTINGS
from knot_runner.config.strict import build
from knot_runner.data.images.partition import PARTITIONS, partition_by_owner
from knot_runner.data.tasks import Partition
from tests.data_checks import check_partition
from tests.tiny import EXAMPLES

#: kind -> its settings, and what is promised beside the default
PARTITIONS_CHECKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "natural": (
        {"by": "user", "least": 1, "num_clients": None, "alpha": 0.5, "embedded_clients": 4},
        {"owners": (0, 1), "seeded": False, "labels": False},
    ),
    "iid": ({"num_clients": 7}, {"labels": False}),
    "dirichlet": ({"num_clients": 4, "alpha": 0.5, "floor": 1}, {}),
    "dirichlet_clients": ({"num_clients": 4, "alpha": 0.5}, {}),
    "shards": ({"num_clients": 5, "shards_per_client": 2}, {}),
    "pairs": ({"num_clients": 4, "groups": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]}, {}),
    "manual": (
        {"num_clients": 20, "classes_per_client": 3, "mu": 1.0, "sigma": 0.5, "offset": 2}, {"owners": range(1000)},
    ),
    "centralized": ({}, {"seeded": False, "labels": False}),
    "blocks": ({"num_clients": 5, "extra": 2.0}, {"seeded": False, "labels": False}),
}  # fmt: skip


@pytest.mark.parametrize("kind", PARTITIONS_CHECKED)
def test_partitions_conform(kind: str) -> None:
    load_plugins([str(EXAMPLES / "own_partition.py")])
    keys, promises = PARTITIONS_CHECKED[kind]
    check_partition(kind, build(PARTITION_SETTINGS[kind], {"kind": kind} | keys, "partition"), **promises)


def test_partition_checks_cover_every_partition() -> None:
    assert set(PARTITIONS_CHECKED) == {*PARTITIONS, "blocks"}


@dataclass
class Halves:
    kind: str = "halves"
    num_clients: int = 2


def halves(settings: Halves, task: Any, rng: np.random.Generator) -> Partition:
    return partition_by_owner(task, rng.permutation(len(task.train)) % settings.num_clients, settings.num_clients, rng)


def changed(change: Callable[[Partition], Any]) -> Callable[..., Partition]:
    def partition(settings: Halves, task: Any, rng: np.random.Generator) -> Partition:
        made = halves(settings, task, rng)
        change(made)
        return made

    return partition


BROKEN: list[tuple[Callable[..., Partition], dict[str, Any], str]] = [
    (changed(lambda made: made.train.__setitem__(0, made.train[0][1:])), {}, r"are at {0, 1} clients, not at \(1,\)"),
    (changed(lambda made: made.train.__setitem__(0, np.arange(120))), {"owners": (0, 1)}, "are at {1, 2} clients"),
    (changed(lambda made: made.train.__setitem__(0, made.train[0][::-1])), {}, "not ascending"),
    (changed(lambda made: made.names.__setitem__(0, made.names[-1])), {}, "differ in length"),
    (lambda settings, task, _: halves(settings, task, np.random.default_rng()), {}, "the same seed"),
    (lambda settings, task, _: halves(settings, task, np.random.default_rng(0)), {}, "a different seed"),
    (lambda settings, task, rng: halves(Halves(), task, rng), {"labels": False}, "partition.num_clients=1"),
]


@pytest.mark.parametrize(("partition", "promises", "problem"), BROKEN)
def test_check_partition_says_what_a_partition_breaks(partition, promises, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_partition(partition, Halves(), **promises)


def test_check_partition_accepts_unregistered_function() -> None:
    check_partition(halves, Halves(), labels=False)
    assert "halves" not in PARTITIONS
