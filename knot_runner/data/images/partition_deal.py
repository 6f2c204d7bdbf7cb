"""Dealing images by a table of counts: rounding shares to whole images, and rows to owners."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

#: owner of an image that no client has
NOBODY = -1


def apportion(exact: np.ndarray) -> np.ndarray:
    """``exact`` [clients, classes] >= 0 as whole numbers (int64); the sum of each column, a whole number, is kept.

    Largest remainders, class by class: every entry is its floor or one more. What earlier classes rounded away is added
    to a client's remainder, so that a client with a small share of many classes also gets its share of all images.
    """
    floors = np.floor(exact + 1e-9).astype(np.int64)
    rest = np.clip(exact - floors, 0, None)
    owed = np.zeros(len(exact))
    for label in range(exact.shape[1]):
        left = round(float(exact[:, label].sum())) - int(floors[:, label].sum())
        eligible = rest[:, label] > 1e-9
        order = np.argsort(np.where(eligible, -rest[:, label] - owed, np.inf), kind="stable")[:left]
        floors[order, label] += 1
        owed += rest[:, label]
        owed[order] -= 1
    return floors


def class_counts(labels: np.ndarray, owner: np.ndarray, clients: int, classes: int) -> np.ndarray:
    """How many images of each class every client has, int64 [clients, classes]. ``owner`` [N]: client or NOBODY."""
    owned = owner != NOBODY
    cells = owner[owned] * classes + labels[owned]
    return np.bincount(cells, minlength=clients * classes).reshape(clients, classes)


def deal_images(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The owner of every image, int64 [N]: ``counts`` [clients, classes] shuffled images each, the rest NOBODY's."""
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    for label in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        dealt = np.repeat(np.arange(len(counts)), counts[:, label])
        owner[rows[: len(dealt)]] = dealt
    return owner


def follow_training(counts: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Owners of test images with ``labels`` [N], each class in the proportions of the training ``counts``.

    A class that no client trains on is dealt in proportion to the clients' training images.
    """
    sizes = np.bincount(labels, minlength=counts.shape[1])
    totals = counts.sum(0)
    weights = np.where(totals > 0, counts, counts.sum(1, keepdims=True))
    shares = weights / weights.sum(0)
    return deal_images(labels, apportion(shares * sizes), rng)


def client_rows(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Each client's rows, ascending int64."""
    order = np.argsort(owner, kind="stable")
    bounds = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[first:last] for first, last in pairwise(bounds)]
