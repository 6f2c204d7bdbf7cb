"""Images dealt to the parties of a distillation: clients as local models, a server's global model, a transfer set."""

from __future__ import annotations

import dataclasses

import numpy as np

from knot_runner.config.settings import PartyShares
from knot_runner.data.images.geometry import label_space
from knot_runner.data.images.partition import make_partition, partition_rng
from knot_runner.data.splits import cut_splits
from knot_runner.data.tasks import UNLABELLED, Dataset, Images, ImageTask, PartyTask
from knot_runner.util.errors import UserError

#: Parties that are no clients.
SERVER, TRANSFER = "server", "transfer"


def image_parties(task: ImageTask, partition: object, shares: PartyShares, seed: int) -> PartyTask:
    """The parties that ``shares`` and ``partition`` make of ``task``; same seed, same parties.

    The server's and the transfer set's images (but for another data set's, ``task.transfer``) are sampled from all
    training images, stratified by class, and the rest is dealt to the clients by ``partition``. All test images are the
    server's test set, too. Raises :class:`UserError` where a party would have too few images.
    """
    server, transfer, rest = _shared_out(task, shares, seed)
    clients_partition = make_partition(partition, dataclasses.replace(task, train=rest), seed)
    datasets = {}
    for name, rows, test in zip(clients_partition.names, clients_partition.train, clients_partition.test, strict=True):
        parts = _train_and_valid(name, rest.take(rows), shares.valid, seed)
        datasets[name] = Dataset(name, "local", {**parts, "test": task.test.take(test)} if len(test) else parts)
    own = _train_and_valid(SERVER, server, shares.valid, seed)
    datasets[SERVER] = Dataset(SERVER, "global", {**own, "test": task.test})
    public = _train_and_valid(TRANSFER, transfer, shares.valid, seed)
    datasets[TRANSFER] = Dataset(TRANSFER, "transfer", {split: _unlabelled(part) for split, part in public.items()})
    notes = [*task.notes, *clients_partition.notes]
    if task.coordinates is None:
        notes.append(f"{task.name} has no coordinates of classes: every two are sqrt(2) apart (task.geometry=onehot)")
    labels = label_space(task.classes, task.coordinates)
    return PartyTask(task.name, labels, datasets, task.source, notes, task.files, read=task.digest)


def clients_images(task: ImageTask, shares: PartyShares, seed: int) -> ImageTask:
    """``task`` with the training images that :func:`image_parties` deals to the clients. Raises :class:`UserError`."""
    return dataclasses.replace(task, train=_shared_out(task, shares, seed)[2])


def transfer_rows(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(Rows for the clients, rows of the transfer set) of training examples with ``labels`` [N], ``share`` of them in
    the latter: stratified by class, ascending. Raises :class:`UserError` where there are too few."""
    return _cut_rows(labels, share, "transfer", seed)


def _shared_out(task: ImageTask, shares: PartyShares, seed: int) -> tuple[Images, Images | None, Images]:
    """The server's images, those of the transfer set (of another data set where ``task`` has one), and the clients'."""
    rest, server = _cut(task.train, shares.server, "server", seed)
    if shares.transfer is None:
        return server, task.transfer, rest
    rest, transfer = _cut(rest, shares.transfer / (1 - shares.server), "transfer", seed)
    return server, transfer, rest


def _cut(images: Images, share: float, name: str, seed: int) -> tuple[Images, Images]:
    """(The rest, ``share`` of the images); ``name``: the key of ``partition`` that sets the share."""
    kept, taken = _cut_rows(images.labels, share, name, seed)
    return images.take(kept), images.take(taken)


def _cut_rows(labels: np.ndarray, share: float, name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        return cut_splits(labels, round(share, 9), _sampling_seed(seed, name))
    except UserError as problem:
        raise UserError(f"partition.{name}: {problem}") from None


def _train_and_valid(party: str, images: Images, share: float, seed: int) -> dict[str, Images]:
    try:
        kept, taken = cut_splits(images.labels, share, _sampling_seed(seed, "valid", party))
    except UserError as problem:
        raise UserError(f"partition.valid: {party}: {problem}") from None
    return {"train": images.take(kept), "valid": images.take(taken)}


def _sampling_seed(seed: int, *names: str) -> int:
    return int(partition_rng(seed, "/".join(names)).integers(2**32))


def _unlabelled(images: Images) -> Images:
    """The same images with every label -1, as in a transfer set (KNOT section 3: its labels are not used)."""
    return dataclasses.replace(images, labels=np.full(len(images), UNLABELLED, dtype=np.int64))
