"""Examples that clients do not train on, clients that never take part, and clients at odds with the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from knot_runner.data.images.partition import partition_rng
from knot_runner.data.tasks import Images, ImageTask, Partition
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
        raise UserError(f"{share:g} of {clients} clients leaves none to train; null is right", "partition.unseen")
    return tuple(_draw_clients(clients, wanted, seed, "unseen"))


def _draw_clients(clients: int, count: int, seed: int, name: str) -> list[int]:
    """``count`` of the clients, ascending, by the draw ``name``."""
    return sorted(partition_rng(seed, name).permutation(clients)[:count].tolist())


#: ``partition.alter`` -> the share of clients whose examples are altered, and what is done to them, for negative
#: transfer (personalization.md 3.5; settings ours): labels y -> C - 1 - y over the C classes that are trained on,
#: images turned, or random training labels and true test labels (Ditto's corruption, Li et al. 2021).
ALTERED_SHARES = {"conflict": 0.5, "shift": 0.5, "noise": 0.3}
ALTERED_NOTES = {
    "conflict": "have their labels in reverse order",
    "shift": "have their images turned by 180 degrees",
    "noise": "have random training labels",
}


def altered_clients(clients: int, kind: str, seed: int) -> list[int]:
    """The clients whose examples are altered, ascending: a share of them, at least one and never all, drawn from
    (seed, kind)."""
    wanted = min(max(round(ALTERED_SHARES[kind] * clients), 1), clients - 1)
    return _draw_clients(clients, wanted, seed, f"alter {kind}")


def alter_clients(task: ImageTask, partition: Partition, kind: str, seed: int) -> tuple[ImageTask, Partition]:
    """``task`` with the examples of some clients altered, the held-out ones too, and ``partition`` with these clients
    as group 1. Raises :class:`UserError` where another client has one of these examples, too."""
    chosen = altered_clients(len(partition.names), kind, seed)
    if not chosen:
        raise UserError(f"{kind} needs two clients at the least; null is right", "partition.alter")
    held = partition.valid or [rows[:0] for rows in partition.train]
    own = [np.concatenate(pair) for pair in zip(partition.train, held, strict=True)]
    _check_shared(own, "training")
    classes = np.unique(task.train.labels)
    train = _altered(task.train, [own[client] for client in chosen], kind, classes, seed)
    test = task.test
    if kind != "noise":
        _check_shared(partition.test, "test")
        test = _altered(test, [partition.test[client] for client in chosen], kind, classes, seed)
    groups = [int(client in chosen) for client in range(len(partition.names))]
    note = f"partition.alter: {len(chosen)} of {len(groups)} clients {ALTERED_NOTES[kind]}"
    regrouped = dataclasses.replace(partition, groups=groups, notes=[*partition.notes, note])
    return dataclasses.replace(task, train=train, test=test), regrouped


def _altered(images: Images, rows: Sequence[np.ndarray], kind: str, classes: np.ndarray, seed: int) -> Images:
    """A copy of ``images`` with those at ``rows``, of several clients, altered; ``classes``: that are trained on."""
    chosen = np.sort(np.concatenate(rows))
    if kind == "shift":
        pixels = images.pixels.copy()
        pixels[chosen] = pixels[chosen][:, :, ::-1, ::-1]
        return dataclasses.replace(images, pixels=pixels)
    labels = images.labels.copy()
    if kind == "noise":
        labels[chosen] = partition_rng(seed, "alter labels").choice(classes, len(chosen))
    else:
        known = chosen[np.isin(labels[chosen], classes)]  # a class without training examples has no counterpart
        labels[known] = classes[::-1][np.searchsorted(classes, labels[known])]
    return dataclasses.replace(images, labels=labels)


def _check_shared(rows: Sequence[np.ndarray], split: str) -> None:
    shared = int((np.bincount(np.concatenate(rows)) > 1).sum())
    if shared:
        raise UserError(
            f"{shared} {split} examples are at several clients, which are not altered alike; "
            "partition=natural, iid or dirichlet, which give each to one, would fit",
            "partition.alter",
        )
