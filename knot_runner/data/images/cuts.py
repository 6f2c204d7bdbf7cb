"""Cutting images: a test set held out where the source has none, and fewer images. Seeded; file order is kept."""

from __future__ import annotations

import numpy as np

from knot_runner.data.cuts import cut_splits, limit
from knot_runner.data.images.types import Images
from knot_runner.util.errors import UserError


def hold_out(images: Images, share: float, seed: int) -> tuple[Images, Images]:
    """(train, test), ``share`` of the images in test: by label, or, where writers are known, of each writer's images,
    so that every writer of two images or more has some in both. Raises :class:`UserError`."""
    if images.users is None:
        try:
            kept, taken = cut_splits(images.labels, share, seed)
        except UserError as problem:
            raise UserError(f"task.holdout: {share}: {problem}") from None
    else:
        is_taken = _of_each(images.users, share, seed)
        kept, taken = np.flatnonzero(~is_taken), np.flatnonzero(is_taken)
        if not len(taken):
            raise UserError(f"task.holdout: {share}: no writer has two images, so none can be held out")
    return images.take(kept), images.take(taken)


def _of_each(users: np.ndarray, share: float, seed: int) -> np.ndarray:
    """bool [N]: ``share`` of each user's rows, drawn at random; at least one, and never all, of a user with two."""
    _, inverse, counts = np.unique(users, return_inverse=True, return_counts=True)
    wanted = np.clip(np.rint(counts * share).astype(int), 1, None)
    wanted = np.minimum(wanted, counts - 1)
    chance = np.random.default_rng(seed).random(len(users))
    order = np.lexsort((chance, inverse))
    rank = np.empty(len(users), dtype=int)
    rank[order] = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank < wanted[inverse]


def limited(train: Images, test: Images, most: int, seed: int) -> tuple[Images, Images]:
    """At most ``most`` train images, each label with its share, and the test images shrunk by the same factor."""
    if len(train) <= most:
        return train, test
    return limit(train, most, seed), limit(test, max(1, round(len(test) * most / len(train))), seed)
