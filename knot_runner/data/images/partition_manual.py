"""Ditto's recipe of clients with few classes and lognormal sizes, in which images may be at several clients."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings import Manual
from knot_runner.data.images.types import Images, ImageTask, Partition
from knot_runner.util.errors import UserError

#: Test images per training image, Fashion-MNIST's 10,000 / 60,000.
TEST_SHARE = 1 / 6


def manual(settings: Manual, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Ditto's ``create_dataset.py`` for Fashion-MNIST (soup.md 3.1), with every number a setting.

    Client u has the classes (u + j) mod C of the C with training images, j = 0..classes_per_client-1, and
    n_u ~ lognormal(mu, sigma) + offset images, rescaled so that all n_u sum to the training images. Of a class it has
    int(share * n_u) + 1 training and int(share * n_u / 6) + 1 test images, shares ~ lognormal(1, 1) normalised.
    """
    present, clients = np.unique(task.train.labels), settings.clients
    if settings.classes_per_client > len(present):
        raise UserError(
            f"partition.classes_per_client: {settings.classes_per_client} is more than the {len(present)} classes "
            f"with training images in {task.name}"
        )
    sizes = rng.lognormal(settings.mu, settings.sigma, clients) + settings.offset
    sizes *= len(task.train) / sizes.sum()
    shares = rng.lognormal(1, 1, (clients, settings.classes_per_client))
    wanted = sizes[:, None] * shares / shares.sum(1, keepdims=True)
    labels = present[(np.arange(clients)[:, None] + np.arange(settings.classes_per_client)) % len(present)]
    train = _take(task.train, labels, wanted.astype(np.int64) + 1, rng)
    test = _take(task.test, labels, (wanted * TEST_SHARE).astype(np.int64) + 1, rng)
    return Partition([f"client {k}" for k in range(clients)], train, test, _notes(train, len(task.train)))


def _take(images: Images, labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of each client: ``counts`` [clients, k] images of ``labels`` [clients, k], in turn from shuffled classes.

    A class with too few left begins again; a client never has an image twice, so it gets a class once at most.
    """
    pools = {k: rng.permutation(np.flatnonzero(images.labels == k)) for k in np.unique(labels)}
    start, rows = dict.fromkeys(pools, 0), []
    for own, amounts in zip(labels, counts, strict=True):
        parts = []
        for label, amount in zip(own, amounts, strict=True):
            first = start[label] if start[label] + amount <= len(pools[label]) else 0
            parts.append(pools[label][first : first + amount])
            start[label] = first + amount
        rows.append(np.sort(np.concatenate(parts)))
    return rows


def _notes(train: list[np.ndarray], size: int) -> list[str]:
    uses = np.bincount(np.concatenate(train), minlength=size)
    several, none = int((uses > 1).sum()), int((uses == 0).sum())
    if not several + none:
        return []
    return [f"partition: of {size} training images {several} are at two clients or more and {none} at none"]
