"""Partitions of images among clients.

The table :data:`PARTITIONS` has one function per ``partition.kind``.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.config.settings.partition import (
    Dirichlet,
    DirichletClients,
    Iid,
    Manual,
    Natural,
    Pairs,
    Shards,
)
from knot_runner.data.images.owners import (
    NOBODY,
    apportion,
    assign_images,
    by_source,
    client_names,
    client_numbers,
    client_rows,
    follow_training,
    manual,
    select_clients,
)
from knot_runner.data.splits import named_rng
from knot_runner.data.tasks import ImageTask, Partition
from knot_runner.util.errors import UserError, counted, nearest

#: Largest default of ``partition.floor``, the minimum examples of each class at each client (FLex&Chill's public code).
FLOOR = 10
#: ``partition.kind`` -> advice in the message if a client would have no images
REMEDIES = {
    "dirichlet": "Use fewer clients, partition.floor=1 or a larger partition.alpha",
    "pairs": "Use fewer clients, or set partition.groups to classes with more training examples",
}


def make_partition(settings: Any, task: ImageTask, seed: int) -> Partition:
    """Return the partition of a task among clients. Equal arguments give equal partitions.

    In most kinds of partition, a client's test images have the class proportions of the client's training images.

    Args:
        settings: An instance of a class in ``PARTITION_SETTINGS``.
        task: The task.
        seed: Seed of the random draws.

    Raises:
        UserError: A setting cannot be satisfied, or a client would have no training images.
    """
    kind = settings.kind
    images = len(task.train)
    if kind not in PARTITIONS:
        raise UserError(f"unknown partition {kind!r}{nearest(kind, PARTITIONS)}", "partition.kind")
    # checked before tables of clients are built; natural uses existing clients, and manual repeats images
    clients = getattr(settings, "num_clients", None) or 1
    if clients > images and not isinstance(settings, Natural | Manual):
        raise UserError(
            f"{clients} clients for only {counted(images, 'training example')}. Use fewer clients",
            "partition.num_clients",
        )
    partition: Partition = PARTITIONS[kind](settings, task, partition_rng(seed, kind))
    sizes = [len(rows) for rows in partition.train]
    if 0 in sizes:
        raise UserError(
            f"client {sizes.index(0)} of {len(sizes)} would have no training examples (the task has {images}). "
            f"{REMEDIES.get(kind, 'Use fewer clients')}",
            "partition.num_clients",
        )
    return partition


def partition_rng(seed: int, kind: str) -> np.random.Generator:
    """Return a random generator for the draw named ``kind``. The generator depends on both arguments."""
    return named_rng(f"{seed}/partition/{kind}")


def partition_by_owner(task: ImageTask, owner: np.ndarray, clients: int, rng: np.random.Generator) -> Partition:
    """Return the partition in which client ``owner[i]`` has training image i.

    Each client's test images have the class proportions of the client's training images.
    """
    test = client_rows(follow_training(task, owner, clients, rng), clients)
    return Partition(client_names(clients), client_rows(owner, clients), test, _untrained(task))


def _untrained(task: ImageTask) -> list[str]:
    """Return a note on classes that have test images but no training images; [] if there are no such classes."""
    missing = [task.classes[k] for k in np.setdiff1d(task.test.labels, task.train.labels)]
    if not missing:
        return []
    if len(missing) > 5:
        missing[5:] = ["..."]
    return [
        f"partition: classes without training examples: {', '.join(missing)}. Their test examples are assigned in "
        "proportion to client sizes"
    ]


def _sizes(task: ImageTask) -> np.ndarray:
    return np.bincount(task.train.labels, minlength=len(task.classes))


def _iid(settings: Iid, task: ImageTask, rng: np.random.Generator) -> Partition:
    owner = rng.permutation(np.arange(len(task.train)) % settings.num_clients)
    return partition_by_owner(task, owner, settings.num_clients, rng)


def _dirichlet(settings: Dirichlet, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Partition as FLex&Chill's later public code.

    Each client first gets a minimum number of images of each class. The remaining images of each class are divided in
    proportions drawn from Dir(alpha).
    """
    sizes = _sizes(task)
    floor = settings.floor
    clients = settings.num_clients
    smallest = np.where(sizes > 0, sizes, len(task.train) + 1).argmin()
    size = sizes[smallest]
    if floor is None:
        floor = min(FLOOR, int(size) // (2 * clients))
    if floor * clients > size:
        raise UserError(
            f"{clients} clients x {counted(floor, 'example')} of each class = {floor * clients} per class, "
            f"but class {task.classes[smallest]} has only {size}. Use partition.floor={size // clients}",
            "partition.floor",
        )
    shares = rng.dirichlet(np.full(settings.num_clients, settings.alpha), len(sizes)).T
    exact = np.where(sizes > 0, floor + shares * (sizes - floor * settings.num_clients), 0)
    owner = assign_images(task.train.labels, apportion(exact), rng)
    partition = partition_by_owner(task, owner, clients, rng)
    if settings.floor is None and floor < FLOOR:
        partition.notes.append(
            f"partition.floor={floor}: chosen, since a larger value would use more than half of the smallest class"
        )
    return partition


def _dirichlet_clients(settings: DirichletClients, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Partition by a Dirichlet mixture of classes per client (Hsu et al. 2019).

    The parameters of the Dirichlet distribution are alpha * C times the class frequencies; for equally frequent
    classes, this is Dir(alpha, ..., alpha). As alpha grows, the clients' data become IID for any class frequencies.
    """
    left = _sizes(task)
    clients = settings.num_clients
    needs = np.bincount(np.arange(len(task.train)) % clients, minlength=clients)
    present = np.flatnonzero(left)
    mixtures = np.zeros((clients, len(left)))
    prior = settings.alpha * len(present) * left[present] / left.sum()
    mixtures[:, present] = rng.dirichlet(prior, clients)
    counts = np.zeros_like(mixtures, dtype=np.int64)
    while needs.any():  # each pass meets all needs or exhausts a class
        weights = mixtures * (left > 0)
        spent = weights.sum(1) < 1e-12  # their classes are exhausted: images of any class
        weights[spent] = left
        sampled = rng.multinomial(needs, weights / weights.sum(1, keepdims=True))
        granted = apportion(sampled * np.minimum(1, left / np.maximum(sampled.sum(0), 1)))
        counts += granted
        left = left - granted.sum(0)
        needs = needs - granted.sum(1)
    return partition_by_owner(task, assign_images(task.train.labels, counts, rng), clients, rng)


def _shards(settings: Shards, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Partition as McMahan et al. (2017).

    Shard sizes differ by at most one image, so that no image is left over.
    """
    clients = settings.num_clients
    each = settings.shards_per_client
    labels = task.train.labels
    count = clients * each
    if count > len(labels):
        raise UserError(
            f"{clients} clients x {each} = {count} shards, but only {counted(len(labels), 'training example')}. "
            "Use fewer clients, or fewer shards",
            "partition.shards_per_client",
        )
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    shard_owner = rng.permutation(np.arange(count) % settings.num_clients)
    owner = np.empty(len(labels), np.int64)
    for client, shard in zip(shard_owner, np.array_split(by_class, count), strict=True):
        owner[shard] = client
    return partition_by_owner(task, owner, clients, rng)


def _neighbors(sizes: np.ndarray, clients: int) -> list[list[int]]:
    """Return groups of neighboring classes.

    The groups are pairs of classes, or larger if ``clients`` // 2 is less than the number of pairs.

    Raises:
        UserError: There are too few classes.
    """
    present = np.flatnonzero(sizes)
    count = min((len(present) + 1) // 2, clients // 2)
    if count < 2:
        raise UserError(f"requires three or more classes, got {len(present)}. Use another partition", "partition=pairs")
    return [group.tolist() for group in np.array_split(present, count)]


def _pairs(settings: Pairs, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Return a partition in which each group of classes has at least two clients (FedWaD's public code).

    The groups of the remaining clients are drawn uniformly. Each class is divided equally among the clients of the
    group that contains the class. Clients are ordered by group.
    """
    classes = len(task.classes)
    clients = settings.num_clients
    chosen = settings.groups or _neighbors(_sizes(task), clients)
    for label in chain.from_iterable(chosen):
        if not 0 <= label < classes:
            raise UserError(f"unknown class {label}. The classes are 0 to {classes - 1}", "partition.groups")
    count = len(chosen)
    extra = rng.integers(count, size=settings.num_clients - 2 * count)
    groups = np.sort(np.concatenate([np.repeat(np.arange(count), 2), extra]))
    member = np.zeros((clients, classes))
    for number, group in enumerate(chosen):
        member[np.ix_(groups == number, group)] = 1
    shares = member / np.maximum(member.sum(0), 1)
    owners = []
    left = []
    notes = []
    for images in (task.train, task.test):
        sizes = np.bincount(images.labels, minlength=classes)
        owners.append(assign_images(images.labels, apportion(shares * sizes), rng))
        left.append(int((owners[-1] == NOBODY).sum()))
    if any(left):
        notes.append(
            f"partition.groups: left out {counted(left[0], 'training example')} and "
            f"{counted(left[1], 'test example')}, whose classes are in no group"
        )
    train, test = (client_rows(owner, clients) for owner in owners)
    return Partition(client_names(clients), train, test, notes, groups.tolist())


def _natural(settings: Natural, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Return one client per writer, file or other owner (``settings.by``).

    The embedded digits have no writers and get a Dirichlet partition, with a note. Clients with fewer than ``least``
    training images are left out, with a note.

    Raises:
        UserError: Data from another source have no owners, or no clients or fewer than ``num_clients`` remain.
    """
    if settings.by not in task.called:
        raise UserError(
            f"task {task.name} (task.source={task.source}) cannot be partitioned by {settings.by!r}"
            f"{nearest(settings.by, task.called)}",
            "partition.by",
        )
    many = task.called[settings.by][1]
    numbers = client_numbers(settings, task.train)
    if numbers is not None:
        return select_clients(settings, by_source(settings, task, numbers, rng), many, rng)
    if task.source != "embedded":
        raise UserError(
            f"partition=natural needs to know which {settings.by} each example came from, but task {task.name} "
            f"(task.source={task.source}) does not record the {settings.by}. Use partition=iid, dirichlet or shards",
            f"partition.by={settings.by}",
        )
    clients = settings.embedded_clients
    alpha = settings.alpha
    partition = _dirichlet(Dirichlet("dirichlet", clients, alpha, 0), task, rng)
    partition.notes.insert(
        0,
        f"partition: {task.name} ({task.source}) has no {many}, so the examples are divided over {clients} clients by "
        f"Dirichlet({alpha:g}) shares",
    )
    return select_clients(settings, partition, "clients", rng)


def _problem(partition: object, settings: object, task: ImageTask, rng: np.random.Generator) -> str:
    """Return what is wrong with a ``partition`` of ``task`` (type, number of clients, rows); "" if it is valid."""
    if not isinstance(partition, Partition):
        return unlike(partition, Partition, "a Partition")
    clients = len(partition.names)
    for name in ("train", "test"):
        rows = getattr(partition, name)
        count = len(getattr(task, name))
        if len(rows) != clients:
            return f"{name} rows of {len(rows)} clients for {clients} names"
        for client, part in enumerate(map(np.asarray, rows)):
            if part.ndim != 1 or (len(part) and part.dtype.kind not in "iu"):
                return f"invalid {name} rows for client {client}: expected a list of integers"
            if len(part) and not 0 <= part.min() <= part.max() < count:
                return f"invalid {name} rows for client {client}: expected numbers from 0 to {count - 1}"
    return ""


#: ``partition.kind`` -> function of (settings, task, random generator) that returns a partition. Plug-ins may add
#: functions, and the classes of their settings to ``PARTITION_SETTINGS``.
PARTITIONS: Table[Any] = Table("PARTITIONS", {
    "natural": _natural,
    "iid": _iid,
    "dirichlet": _dirichlet,
    "dirichlet_clients": _dirichlet_clients,
    "shards": _shards,
    "pairs": _pairs,
    "manual": manual,
    "centralized": lambda _, task, rng: partition_by_owner(task, np.zeros(len(task.train), np.int64), 1, rng),
}, lambda where, function: checked(where, function, _problem))  # fmt: skip
