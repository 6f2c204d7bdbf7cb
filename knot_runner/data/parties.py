"""The data of each party in a distillation.

In KNOT, the images of a task are divided among clients with local models, the server with the global model, and the
transfer set. In ``method=distill``, the student and all teachers have the same examples, but the student may see only
some labels.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.methods.distill import DistillSettings, teacher_names
from knot_runner.config.settings.partition import PartyShares
from knot_runner.config.strict import without
from knot_runner.data.images.load import label_space
from knot_runner.data.images.partition import make_partition, partition_rng
from knot_runner.data.pools import pooled_split
from knot_runner.data.splits import cut_splits
from knot_runner.data.tasks import TEXT_SPLITS, Dataset, Examples, Images, ImageTask, PartyTask

#: Names of the two parties that are not clients.
SERVER_PARTY = "server"
TRANSFER = "transfer"


def image_parties(task: ImageTask, partition: object, shares: PartyShares, seed: int) -> PartyTask:
    """Divide the images of a task among the server, the transfer set and the clients. Return a task with these parties.

    Args:
        task: The image task. All of its test images become the server's test set.
        partition: Settings of the partition among the clients.
        shares: ``server`` and ``transfer`` are fractions of the training images. If ``transfer`` is None,
            ``task.transfer`` is the transfer set. Each party holds out the fraction ``valid`` of its training
            images for validation.
        seed: Seed of the random draws.

    Raises:
        UserError: A party would have too few images.
    """
    server, transfer, rest = divide_images(task, shares, seed)
    clients = make_partition(partition, dataclasses.replace(task, train=rest), seed)

    def split(party: str, images: Images) -> dict[str, Examples | Images]:
        return _held_out(f"partition.valid: {party}", images, shares.valid, seed, "valid", party)

    datasets = {}
    for name, rows, test in zip(clients.names, clients.train, clients.test, strict=True):
        parts = split(name, rest.take(rows))
        if len(test):
            parts |= {"test": task.test.take(test)}
        datasets[name] = Dataset(name, "local", parts)
    datasets[SERVER_PARTY] = Dataset(SERVER_PARTY, "global", {**split(SERVER_PARTY, server), "test": task.test})
    datasets[TRANSFER] = Dataset(
        TRANSFER, "transfer", {part: images.unlabeled() for part, images in split(TRANSFER, transfer).items()}
    )
    notes = [*task.notes, *clients.notes]
    if task.coordinates is None:
        notes.append(f"{task.name} has no class coordinates, so all distances are sqrt(2) (task.geometry=onehot)")
    labels = label_space(task.classes, task.coordinates)
    return PartyTask(task.name, labels, datasets, task.source, notes, task.files, read=task.digest)


def transfer_rows(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Divide N examples at random. Return the sorted row numbers of two parts: (clients' examples, transfer set).

    Args:
        labels: Class of each of N examples. The draw is stratified by class.
        share: Fraction of the examples for the transfer set.
        seed: Seed of the draw.

    Raises:
        UserError: There are too few examples.
    """
    return _cut("partition.transfer", labels, round(share, 9), seed, "transfer")


def divide_images(task: ImageTask, shares: PartyShares, seed: int) -> tuple[Images, Images | None, Images]:
    """Return the images of the server, the transfer set and the clients.

    If ``shares.transfer`` is None, the second result is ``task.transfer``, which may be None.

    Raises:
        UserError: There are too few images.
    """
    kept, taken = _cut("partition.server", task.train.labels, round(shares.server, 9), seed, "server")
    rest = task.train.take(kept)
    server = task.train.take(taken)
    if shares.transfer is None:
        return server, task.transfer, rest
    kept, taken = transfer_rows(rest.labels, shares.transfer / (1 - shares.server), seed)
    return server, rest.take(taken), rest.take(kept)


def _held_out(key: str, images: Images, share: float | None, seed: int, *names: str) -> dict[str, Examples | Images]:
    """Return the split train of ``images`` and, unless ``share`` is None, a split valid with that share.

    Arguments and errors are the same as in :func:`_cut`.
    """
    if share is None:
        return {"train": images}
    kept, taken = _cut(key, images.labels, share, seed, *names)
    return {"train": images.take(kept), "valid": images.take(taken)}


def _cut(key: str, labels: np.ndarray, share: float, seed: int, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (kept, taken) of :func:`cut_splits`. ``names`` seed the draw; error messages name ``key``."""
    return cut_splits(labels, share, int(partition_rng(seed, "/".join(names)).integers(2**32)), key)


#: Name of the party that learns from the teachers and is evaluated.
STUDENT = "student"


def teaching_parties(task: ImageTask | PartyTask, config: DistillSettings, seed: int) -> PartyTask:
    """Return a task whose parties are the student and all teachers. All parties have the same training examples.

    Teachers see all labels. The student sees a stratified fraction ``config.labeled`` of the labels; the student's
    other labels are -1. Only the student has a test split.

    All parties have the same validation split. In image tasks, the validation split is a stratified fraction
    ``config.valid`` of the training images. It is absent if ``config.valid`` is None.

    Raises:
        UserError: A fraction leaves too few examples.
    """
    rows = {}
    splits = {}
    if isinstance(task, PartyTask):
        splits.update({split: pooled_split(task, split) for split in TEXT_SPLITS})
        labels = task.labels
        rows = task.rows
    else:
        splits.update(_held_out("method.valid", task.train, config.valid, seed, "teaching", "valid"), test=task.test)
        labels = label_space(task.classes, task.coordinates)
    datasets = {}
    for name in teacher_names(len(config.teachers)):
        datasets[name] = Dataset(name, "local", without(splits, "test"))
    student_splits = {**splits, "train": _partly_labeled(splits["train"], config.labeled, seed)}
    datasets[STUDENT] = Dataset(STUDENT, "global", student_splits)
    return PartyTask(task.name, labels, datasets, task.source, list(task.notes), task.files, rows, task.digest)


def _partly_labeled(examples: Examples | Images, share: float, seed: int) -> Examples | Images:
    """Return ``examples`` with the labels of a stratified ``share`` kept and all other labels hidden."""
    if share == 1:
        return examples
    hidden, _ = _cut("method.labeled", examples.labels, share, seed, "teaching", "labeled")
    labels = examples.labels.copy()
    labels[hidden] = UNLABELED
    return dataclasses.replace(examples, labels=labels)
