"""The source's own clients: its writers or its files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from knot_runner.config.settings import Natural
from knot_runner.data.images.partition_deal import NOBODY, class_counts, client_rows, follow_training
from knot_runner.data.images.types import Images, ImageTask, Partition
from knot_runner.util.errors import UserError

#: ``partition.by`` -> what a client is called, singular and plural.
CALLED = {"user": ("writer", "writers"), "file": ("file", "files")}


def natural(
    settings: Natural, task: ImageTask, otherwise: Callable[[], Partition], rng: np.random.Generator
) -> Partition:
    """One client per writer or file; ``otherwise()`` deals the images where the source knows none.

    Clients with fewer than ``least`` training images are left out, and that is noted. Raises :class:`UserError` where
    there are none, with without_users=stop, or fewer than ``clients``.
    """
    many = CALLED[settings.by][1]
    if _numbers(settings, task.train) is not None:
        return _select(settings, _by_source(settings, task, rng), many, rng)
    if settings.without_users == "stop":
        raise UserError(
            f"partition.by: {task.name} ({task.source}) knows no {many}; partition=dirichlet would fit, "
            "or partition.without_users=dirichlet"
        )
    made = otherwise()
    note = (
        f"partition: {task.name} ({task.source}) knows no {many}, so {settings.count} clients are dealt by "
        f"Dirichlet({settings.alpha:g}) shares (partition.without_users=dirichlet)"
    )
    dealt = Partition(made.names, made.train, made.test, [note, *made.notes])
    return _select(settings, dealt, "clients", rng)


def _numbers(settings: Natural, images: Images) -> np.ndarray | None:
    return images.users if settings.by == "user" else images.files


def _by_source(settings: Natural, task: ImageTask, rng: np.random.Generator) -> Partition:
    one, many = CALLED[settings.by]
    known, owner = np.unique(_numbers(settings, task.train), return_inverse=True)
    test, notes = _numbers(settings, task.test), []
    if test is None:
        counts = class_counts(task.train.labels, owner, len(known), len(task.classes))
        test_owner = follow_training(counts, task.test.labels, rng)
        notes.append(f"partition: the test images name no {many}; each class is dealt as the training images are")
    else:
        place = np.minimum(np.searchsorted(known, test), len(known) - 1)
        test_owner = np.where(known[place] == test, place, NOBODY)
        if (alone := int((test_owner == NOBODY).sum())) > 0:
            notes.append(f"partition: {alone} test images are of {many} without training images and are left out")
    given = task.user_names if settings.by == "user" else task.file_names
    names = [given[k] if given is not None else f"{one} {k}" for k in known]
    return Partition(names, client_rows(owner, len(known)), client_rows(test_owner, len(known)), notes)


def _select(settings: Natural, whole: Partition, many: str, rng: np.random.Generator) -> Partition:
    """The clients with enough images, and of these ``settings.clients`` drawn at random."""
    sizes = np.array([len(rows) for rows in whole.train])
    kept = np.flatnonzero(sizes >= settings.least)
    notes = list(whole.notes)
    if len(kept) == 0:
        raise UserError(
            f"partition.least: none of {len(sizes)} {many} has {settings.least} training images; "
            f"the largest has {sizes.max()}"
        )
    if len(kept) < len(sizes):
        notes.append(
            f"partition.least={settings.least}: {len(sizes) - len(kept)} of {len(sizes)} {many} "
            "have fewer training images and are left out"
        )
    if settings.clients is not None:
        if settings.clients > len(kept):
            raise UserError(f"partition.clients: {settings.clients} is more than the {len(kept)} {many} there are")
        kept = np.sort(rng.choice(kept, settings.clients, replace=False))
    names, train, test = ([part[k] for k in kept] for part in (whole.names, whole.train, whole.test))
    return Partition(names, train, test, notes)
