"""Assignment of images to clients: by a table of counts, by writer or file, or by random sizes and classes.

The owner of an image is the number of its client, or NOBODY.
"""

from __future__ import annotations

import numpy as np

from knot_runner.config.settings.partition import Manual, Natural
from knot_runner.data.tasks import Images, ImageTask, Partition
from knot_runner.util.errors import UserError, counted

#: Owner of an image that belongs to no client.
NOBODY = -1


def or_none(owners: np.ndarray) -> np.ndarray | None:
    """Return ``owners``; None if no example has an owner."""
    if (owners == NOBODY).all():
        return None
    return owners


def apportion(exact: np.ndarray) -> np.ndarray:
    """Round a non-negative array of shape [clients, classes] to integers, without changing the sum of each class.

    The sum of each class must be an integer. Classes are rounded in order, by the method of largest remainders.
    Each client's remainder is increased by the amount that the client lost when earlier classes were rounded.
    """
    floors = np.floor(exact + 1e-9).astype(np.int64)
    rest = np.clip(exact - floors, 0, None)
    # What each client lost by rounding so far. A client with small shares of many classes thus gets a fair total.
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
    """Return the number of images per client and class, int64 of shape [clients, classes].

    Args:
        labels: Class of each of N images.
        owner: Owner of each of N images.
        clients: The number of clients.
        classes: The number of classes.
    """
    owned = owner != NOBODY
    cells = owner[owned] * classes + labels[owned]
    return np.bincount(cells, minlength=clients * classes).reshape(clients, classes)


def assign_images(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Assign images to clients at random. Return the owner of each of N images, int64 of shape [N].

    Args:
        labels: Class of each of N images.
        counts: Number of images of each class that each client gets, shape [clients, classes]. All other images have
            no owner.
        rng: The random generator.
    """
    owner = np.full(len(labels), NOBODY, dtype=np.int64)
    for label in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == label))
        owners = np.repeat(np.arange(len(counts)), counts[:, label])
        owner[rows[: len(owners)]] = owners
    return owner


def follow_training(task: ImageTask, owner: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
    """Assign the N test images to clients at random. Return the owner of each image, int64 of shape [N].

    The test images of a class are divided in proportion to the clients' training images of this class. A class without
    training images is divided in proportion to the clients' total numbers of training images.

    Args:
        task: The image task.
        owner: Owner of each training image.
        clients: The number of clients.
        rng: The random generator.
    """
    labels = task.test.labels
    classes = len(task.classes)
    counts = class_counts(task.train.labels, owner, clients, classes)
    sizes = np.bincount(labels, minlength=classes)
    weights = np.where(counts.sum(0) > 0, counts, counts.sum(1, keepdims=True))
    return assign_images(labels, apportion(weights / weights.sum(0) * sizes), rng)


def client_rows(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Return one int64 array per client: the ascending positions in ``owner`` that hold the client's index."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(clients + 1)))[1:-1]


def client_numbers(settings: Natural, images: Images) -> np.ndarray | None:
    """Return the client number of each image: ``images.files`` if ``settings.by`` is "file", else ``images.users``."""
    return images.files if settings.by == "file" else images.users


def by_source(settings: Natural, task: ImageTask, numbers: np.ndarray, rng: np.random.Generator) -> Partition:
    """Return a partition with one client per user or file of the data source.

    ``numbers``: result of :func:`client_numbers` for the training examples.
    """
    owner_noun, many = task.called[settings.by]
    clients = np.unique(numbers[numbers != NOBODY])
    owner = _positions(numbers, clients)
    test = client_numbers(settings, task.test)
    notes = []
    nameless = int((numbers == NOBODY).sum())
    nameless_test = 0
    if test is not None:
        nameless_test = int((test == NOBODY).sum())
    if nameless or nameless_test:
        notes.append(
            f"partition: left out {counted(nameless, 'training example')} and "
            f"{counted(nameless_test, 'test example')} without a {owner_noun}"
        )
    if test is None:
        test_owner = follow_training(task, owner, len(clients), rng)
        notes.append(
            f"partition: the test examples have no {many}, so clients get them in proportion to their training classes"
        )
    else:
        test_owner = _positions(test, clients)
        alone = int((test_owner == NOBODY).sum()) - nameless_test
        if alone:
            notes.append(f"partition: left out {counted(alone, 'test example')} of {many} without training examples")
    given = task.file_names if settings.by == "file" else task.user_names
    names = [f"{owner_noun} {k}" if given is None else given[k] for k in clients]
    return Partition(names, client_rows(owner, len(clients)), client_rows(test_owner, len(clients)), notes)


def _positions(numbers: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return the position of each number in the sorted ``clients``, or NOBODY if ``clients`` does not contain it."""
    index = np.minimum(np.searchsorted(clients, numbers), len(clients) - 1)
    return np.where(clients[index] == numbers, index, NOBODY)


def select_clients(settings: Natural, whole: Partition, many: str, rng: np.random.Generator) -> Partition:
    """Reduce a partition to some of its clients, and return the new partition.

    Clients with fewer than ``settings.least`` training images are left out. If ``settings.num_clients`` is set, that
    many of the remaining clients are drawn at random.

    Args:
        settings: Settings of the partition.
        whole: The partition.
        many: The noun for the clients in messages, such as ``writers``.
        rng: The random generator.

    Raises:
        UserError: Too few clients remain.
    """
    sizes = np.array(list(map(len, whole.train)))
    least = settings.least
    wanted = settings.num_clients
    total = len(sizes)
    kept = np.flatnonzero(sizes >= least)
    notes = list(whole.notes)
    if not len(kept):
        raise UserError(
            f"expected at most {sizes.max()} (no client has more training examples), got {least}", "partition.least"
        )
    if len(kept) < total:
        notes.append(
            f"partition.least={least}: left out {total - len(kept)} of {total} {many}, "
            "which have fewer training examples"
        )
    if wanted is not None:
        if wanted > len(kept):
            raise UserError(f"expected at most {len(kept)} (number of {many}), got {wanted}", "partition.num_clients")
        kept = np.sort(rng.choice(kept, wanted, replace=False))
    names = [whole.names[client] for client in kept]
    return Partition(names, [whole.train[client] for client in kept], [whole.test[client] for client in kept], notes)


def client_names(clients: int) -> list[str]:
    """Return the names ``client 0``, ``client 1``, ..."""
    return [f"client {k}" for k in range(clients)]


#: Default number of classes per client of ``manual`` (Ditto).
CLASSES_PER_CLIENT = 5
#: Test images per training image of ``manual``, as in Fashion-MNIST (10,000 / 60,000).
TEST_SHARE = 1 / 6


def manual(settings: Manual, task: ImageTask, rng: np.random.Generator) -> Partition:
    """Return a partition as in Ditto's script ``create_dataset.py`` for Fashion-MNIST (Li et al. 2021).

    C is the number of classes that have training images. Client u has the classes ``(u + j) mod C`` for j from 0 to
    ``classes_per_client - 1``. The size n_u of client u is drawn from lognormal(mu, sigma) + offset. All sizes are
    then rescaled: their sum becomes the number of training images.

    Client u draws one share for each of its classes from lognormal(1, 1). The shares of a client are normalized to the
    sum 1. Client u has ``int(s * n_u) + 1`` training images and ``int(s * n_u / 6) + 1`` test images of a class with
    share s. Several clients may have the same image.
    """
    present = np.unique(task.train.labels)
    clients = settings.num_clients
    size = len(task.train)
    classes = settings.classes_per_client or min(CLASSES_PER_CLIENT, len(present))
    if classes > len(present):
        raise UserError(
            f"expected at most {len(present)} (the number of classes with training examples), got {classes}",
            "partition.classes_per_client",
        )
    sizes = rng.lognormal(settings.mu, settings.sigma, clients) + settings.offset
    sizes *= size / sizes.sum()
    shares = rng.lognormal(1, 1, (clients, classes))
    wanted = sizes[:, None] * shares / shares.sum(1, keepdims=True)
    labels = present[(np.arange(clients)[:, None] + np.arange(classes)) % len(present)]
    train = _take_in_turn(task.train, labels, wanted.astype(np.int64) + 1, rng)
    test = _take_in_turn(task.test, labels, (wanted * TEST_SHARE).astype(np.int64) + 1, rng)
    uses = np.bincount(np.concatenate(train), minlength=size)
    several = int((uses > 1).sum())
    none = int((uses == 0).sum())
    notes = []
    if several or none:
        notes.append(
            f"partition: of {counted(size, 'training example')}, {several} are at several clients, {none} at no client"
        )
    if settings.classes_per_client is None and classes < CLASSES_PER_CLIENT:
        notes.append(f"partition.classes_per_client={classes}: each client has all classes")
    return Partition(client_names(clients), train, test, notes)


def _take_in_turn(images: Images, labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return each client's rows: for each of k classes, the next images of this class.

    ``labels`` are the classes of each client, and ``counts`` the numbers of images, both of shape [clients, k]. The
    images of each class are shuffled. If too few images of a class remain, the first images of this class are used
    again. No client gets an image twice, because the classes of a client are distinct.
    """
    pools = {label: rng.permutation(np.flatnonzero(images.labels == label)) for label in np.unique(labels)}
    start = dict.fromkeys(pools, 0)
    rows = []
    for client_labels, client_counts in zip(labels, counts, strict=True):
        parts = []
        for label, count in zip(client_labels, client_counts, strict=True):
            first = start[label] if start[label] + count <= len(pools[label]) else 0
            parts.append(pools[label][first : first + count])
            start[label] = first + count
        rows.append(np.sort(np.concatenate(parts)))
    return rows
