"""partition.kind=manual: some classes for each client, by numbers of its own."""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings import Manual
from knot_runner.data.images.owners import client_names
from knot_runner.data.tasks import Images, ImageTask, Partition
from knot_runner.util.errors import UserError

#: of manual: test images per training image, Fashion-MNIST's 10,000 / 60,000
TEST_SHARE = 1 / 6


def manual(settings: Manual, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Ditto's ``create_dataset.py`` for Fashion-MNIST (soup.md 3.1), with every number a setting; images may be at
    several clients.

    Client u has the classes (u + j) mod C of the C with training images, j = 0..classes_per_client-1, and
    n_u ~ lognormal(mu, sigma) + offset images, rescaled so that all n_u sum to the training images. Of a class it has
    int(share * n_u) + 1 training and int(share * n_u / 6) + 1 test images, shares ~ lognormal(1, 1) normalised.
    """
    present, clients, size = np.unique(task.train.labels), settings.clients, len(task.train)
    if settings.classes_per_client > len(present):
        raise UserError(
            f"partition.classes_per_client: {settings.classes_per_client} is more than the {len(present)} classes "
            f"with training examples in {task.name}"
        )
    sizes = rng.lognormal(settings.mu, settings.sigma, clients) + settings.offset
    sizes *= size / sizes.sum()
    shares = rng.lognormal(1, 1, (clients, settings.classes_per_client))
    wanted = sizes[:, None] * shares / shares.sum(1, keepdims=True)
    labels = present[(np.arange(clients)[:, None] + np.arange(settings.classes_per_client)) % len(present)]
    train = _take_in_turn(task.train, labels, wanted.astype(np.int64) + 1, rng)
    test = _take_in_turn(task.test, labels, (wanted * TEST_SHARE).astype(np.int64) + 1, rng)
    uses = np.bincount(np.concatenate(train), minlength=size)
    several, none = int((uses > 1).sum()), int((uses == 0).sum())
    note = f"partition: of {size} training examples {several} are at two clients or more and {none} at none"
    return Partition(client_names(clients), train, test, [note] if several + none else [])


def _take_in_turn(images: Images, labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows of each client: ``counts`` [clients, k] images of its ``labels`` [clients, k], the next ones of each class.

    Classes are shuffled; one with too few left begins again. No client has an image twice, as its labels differ.
    """
    pools = {label: rng.permutation(np.flatnonzero(images.labels == label)) for label in np.unique(labels)}
    start, rows = dict.fromkeys(pools, 0), []
    for client_labels, client_counts in zip(labels, counts, strict=True):
        parts = []
        for label, count in zip(client_labels, client_counts, strict=True):
            first = start[label] if start[label] + count <= len(pools[label]) else 0
            parts.append(pools[label][first : first + count])
            start[label] = first + count
        rows.append(np.sort(np.concatenate(parts)))
    return rows
