"""What clients do not train on: counts by hand, and that nothing is lost or used twice."""

from __future__ import annotations

import numpy as np
import pytest

from knot_runner.data.images.held_out import hold_out_valid, unseen_clients
from knot_runner.data.tasks import Partition
from tests.golden.messages import refuses


@pytest.mark.parametrize(("share", "counts"), [(0.25, [0, 1, 1, 2]), (0.01, [0, 1, 1, 1]), (0.99, [0, 1, 2, 9])])
def test_a_client_holds_out_one_of_two_and_never_all(share: float, counts: list[int]) -> None:
    """Of clients with 1, 2, 3 and 10 examples."""
    rows = [np.arange(100 * size, 101 * size) for size in (1, 2, 3, 10)]
    partition = hold_out_valid(Partition(list("abcd"), rows, rows), share, seed=0)
    assert [len(valid) for valid in partition.valid] == counts
    for train, valid, own in zip(partition.train, partition.valid, rows, strict=True):
        assert sorted([*train, *valid]) == own.tolist()
        assert (np.diff(train) > 0).all() and (np.diff(valid) > 0).all()


@pytest.mark.parametrize(("clients", "share", "count"), [(10, 0.01, 1), (10, 0.26, 3), (2, 0.5, 1), (10, 0.9, 9)])
def test_unseen_clients_are_a_share_and_at_least_one(clients: int, share: float, count: int) -> None:
    unseen = unseen_clients(clients, share, seed=3)
    assert len(set(unseen)) == count and list(unseen) == sorted(unseen) and set(unseen) <= set(range(clients))


def test_unseen_clients_leave_one_to_train() -> None:
    with refuses():
        unseen_clients(10, 0.96, seed=0)
