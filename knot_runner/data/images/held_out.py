"""Examples that clients do not train on: a validation share of each client, and clients that never take part."""

from __future__ import annotations

import dataclasses

import numpy as np

from knot_runner.data.images.partition import partition_rng
from knot_runner.data.tasks import Partition
from knot_runner.util.errors import UserError


def hold_out_valid(partition: Partition, share: float, seed: int) -> Partition:
    """``partition`` with ``share`` of each client's training examples held out for choices (``valid``): drawn from
    (seed, client), rounded, at least one of two or more, and never all. A client with one example holds out none."""
    train, valid = [], []
    for client, rows in enumerate(partition.train):
        wanted = min(max(round(share * len(rows)), 1), len(rows) - 1)
        order = partition_rng(seed, f"valid {client}").permutation(len(rows))
        valid.append(np.sort(rows[order[:wanted]]))
        train.append(np.sort(rows[order[wanted:]]))
    total = sum(map(len, valid))
    note = f"partition.valid: {total} of the clients' training examples are held out, for choices among models"
    return dataclasses.replace(partition, train=train, valid=valid, notes=[*partition.notes, note])


def unseen_clients(clients: int, share: float, seed: int) -> tuple[int, ...]:
    """The numbers of the clients that take part in no round: ``share`` of them, rounded, at least one, drawn from the
    seed, ascending. Raises :class:`UserError` where fewer than one would be left to train."""
    wanted = max(round(share * clients), 1)
    if wanted >= clients:
        raise UserError(f"partition.unseen: {share:g} of {clients} clients leaves none to train; null is right")
    order = partition_rng(seed, "unseen").permutation(clients)
    return tuple(sorted(int(client) for client in order[:wanted]))
