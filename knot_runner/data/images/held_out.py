"""Held-out examples, unseen clients, clients with altered data, and unlabeled images of another data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from knot_runner.config.settings.image_tasks import UNLABELED, ImageTaskSettings, transfer_keys
from knot_runner.data.images.checks import sides
from knot_runner.data.images.load import read_digits, read_parts, scale, unit_pixels
from knot_runner.data.images.partition import partition_rng
from knot_runner.data.images.views import gray
from knot_runner.data.tasks import Images, ImageTask, Partition
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError


def hold_out_valid(partition: Partition, share: float, seed: int) -> Partition:
    """Hold out a random fraction ``share`` of each client's training examples. Return the new partition.

    Each client with at least two examples holds out at least one and keeps at least one. A client with one example
    holds out none.
    """
    train = []
    valid = []
    for client, rows in enumerate(partition.train):
        wanted = min(max(round(share * len(rows)), 1), len(rows) - 1)
        order = partition_rng(seed, f"valid {client}").permutation(len(rows))
        valid.append(np.sort(rows[order[:wanted]]))
        train.append(np.sort(rows[order[wanted:]]))
    note = f"partition.valid: {sum(map(len, valid))} of the clients' training examples are held out to select models"
    return replace(partition, train=train, valid=valid, notes=[*partition.notes, note])


def unseen_clients(clients: int, share: float, seed: int) -> tuple[int, ...]:
    """Draw the clients that participate in no round. Return their indices, ascending.

    Args:
        clients: The number of clients.
        share: Fraction of the clients to draw. At least one client is drawn.
        seed: Seed of the draw.

    Raises:
        UserError: No client remains for training.
    """
    wanted = max(round(share * clients), 1)
    if wanted >= clients:
        raise UserError(
            f"a share of {share:g} leaves none of the {clients} clients for training. Use a smaller share or null",
            "partition.unseen",
        )
    return tuple(_draw_clients(clients, wanted, seed, "unseen"))


def _draw_clients(clients: int, count: int, seed: int, name: str) -> list[int]:
    """Return the indices of ``count`` random clients, ascending. ``name`` identifies the draw."""
    return sorted(partition_rng(seed, name).permutation(clients)[:count].tolist())


#: ``partition.alter`` -> share of the clients whose examples are altered, to study negative transfer
#: (docs/papers/soup.md; the shares are our choice). ``conflict``: labels y -> C - 1 - y over the C classes of the
#: training examples. ``shift``: rotated images. ``noise``: random training labels and true test labels (Ditto's
#: corruption, Li et al. 2021).
ALTERED_SHARES = {"conflict": 0.5, "shift": 0.5, "noise": 0.3}
ALTERED_NOTES = {
    "conflict": "have reversed labels",
    "shift": "have images rotated by 180 degrees",
    "noise": "have random training labels",
}


def altered_clients(clients: int, kind: str, seed: int) -> list[int]:
    """Draw the clients whose examples are altered. Return their indices, ascending.

    The fraction of drawn clients is ``ALTERED_SHARES[kind]``. At least one client is drawn, but never all.
    """
    wanted = min(max(round(ALTERED_SHARES[kind] * clients), 1), clients - 1)
    return _draw_clients(clients, wanted, seed, f"alter {kind}")


def alter_clients(task: ImageTask, partition: Partition, kind: str, seed: int) -> tuple[ImageTask, Partition]:
    """Alter the examples of some clients. Return the altered task and the new partition.

    ``kind`` is the setting ``partition.alter``. With "noise", test examples are not altered. In the new partition,
    altered clients belong to group 1, and all other clients to group 0.

    Raises:
        UserError: An example is assigned to several clients, or there are fewer than two clients.
    """
    chosen = altered_clients(len(partition.names), kind, seed)
    if not chosen:
        raise UserError(f"{kind!r} needs at least two clients. Use null", "partition.alter")
    held = partition.valid or [rows[:0] for rows in partition.train]
    client_rows = [np.concatenate(pair) for pair in zip(partition.train, held, strict=True)]
    _check_shared(client_rows, "training")
    classes = np.unique(task.train.labels)
    train = _altered(task.train, [client_rows[client] for client in chosen], kind, classes, seed)
    test = task.test
    if kind != "noise":
        _check_shared(partition.test, "test")
        test = _altered(test, [partition.test[client] for client in chosen], kind, classes, seed)
    groups = [int(client in chosen) for client in range(len(partition.names))]
    note = f"partition.alter: {len(chosen)} of {len(groups)} clients {ALTERED_NOTES[kind]}"
    partition = replace(partition, groups=groups, notes=[*partition.notes, note])
    return replace(task, train=train, test=test), partition


def _altered(images: Images, rows: Sequence[np.ndarray], kind: str, classes: np.ndarray, seed: int) -> Images:
    """Return a copy of ``images`` with altered images at ``rows``; ``classes``: the classes of the training images."""
    chosen = np.sort(np.concatenate(rows))
    if kind == "shift":
        pixels = images.pixels.copy()
        pixels[chosen] = pixels[chosen][:, :, ::-1, ::-1]
        return replace(images, pixels=pixels)
    labels = images.labels.copy()
    if kind == "noise":
        labels[chosen] = partition_rng(seed, "alter labels").choice(classes, len(chosen))
    else:
        known = chosen[np.isin(labels[chosen], classes)]  # a class without training examples has no counterpart
        labels[known] = classes[::-1][np.searchsorted(classes, labels[known])]
    return replace(images, labels=labels)


def _check_shared(rows: Sequence[np.ndarray], split: str) -> None:
    shared = int((np.bincount(np.concatenate(rows)) > 1).sum())
    if shared:
        raise UserError(
            f"some {split} examples (in total {shared}) belong to several clients, but an example cannot be altered "
            "for only some of its clients. Use partition=natural, iid or dirichlet",
            "partition.alter",
        )


# --------------------------------------------------------------------------------------------------------- unlabeled


#: Number of images that are converted at once, which limits the memory of float64 copies.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class UnlabeledImages:
    """Training images of a data set, in file order. All labels are -1.

    Attributes:
        name: Name of the data set.
        images: The images.
        files: Fingerprints of the files that were read.
        notes: Messages for the user.
    """

    name: str
    images: Images
    files: list[Opened] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load_unlabeled(settings: ImageTaskSettings, data_root: Path | None) -> UnlabeledImages:
    """Return ``settings.max_examples`` random training images without labels.

    If ``max_examples`` is None, all training images are returned. The draw is seeded by ``settings.cut_seed``.

    Raises:
        UserError: The images cannot be loaded, or are too few. The message names the file, or a key in ``transfer``.
    """
    try:
        pixels, files, notes = _pixels(settings, data_root)
    except UserError as problem:  # messages of readers name keys of the task
        raise UserError(transfer_keys(str(problem))) from None
    count = len(pixels)
    most = settings.max_examples
    if most is not None:
        if most > count:
            raise UserError(
                f"expected at most {count} (the number of images of {settings.name}) or null for all, got {most}",
                "transfer.max_examples",
            )
        chosen = np.random.default_rng(settings.cut_seed).permutation(count)[:most]
        pixels = pixels[np.sort(chosen)]
    images = Images(pixels, np.full(len(pixels), UNLABELED, dtype=np.int64))
    return UnlabeledImages(settings.name, images, files, notes)


def with_transfer(task: ImageTask, other: UnlabeledImages) -> ImageTask:
    """Return ``task`` with the images of ``other`` as its transfer set.

    The images are converted to the shape and data type of the images of ``task``.

    Raises:
        UserError: The images cannot be converted.
    """
    images = fit_images(other.images, task.train.pixels)
    note = f"transfer={other.name}: {len(images)} images of another data set are the transfer set"
    before = other.images.pixels.shape[1:]
    if before != task.shape:
        note += f", scaled from {sides(before)} to {sides(task.shape)}"
    files = {file.path: file for file in (*task.files, *other.files)}
    return replace(task, transfer=images, notes=[*task.notes, *other.notes, note], files=list(files.values()))


def fit_images(images: Images, reference: np.ndarray) -> Images:
    """Convert ``images`` to the size, number of channels and data type of the images ``reference``.

    ``reference`` has shape [N, C, H, W]. If the numbers of channels differ, gray images become color images, or color
    images become gray images. Scaling is bilinear, and uint8 values are rounded.

    Raises:
        UserError: The numbers of channels differ, and one of them is neither 1 nor 3.
    """
    pixels = images.pixels
    shape = reference.shape[1:]
    channels = pixels.shape[1]
    wanted = shape[0]
    if channels != wanted and {channels, wanted} != {1, 3}:
        raise UserError(
            f"the images have {channels} channels, but task.shape has {wanted}. Only conversions between 1 (gray) "
            "and 3 (color) channels are supported",
            "transfer.shape",
        )
    if pixels.shape[1:] == shape and pixels.dtype == reference.dtype:
        return images
    fitted = np.empty((len(images), *shape), reference.dtype)
    for start in range(0, len(images), _BLOCK):
        values = unit_pixels(pixels[start : start + _BLOCK], np.float64)
        if channels == 3 and wanted == 1:
            values = gray(values)
        if values.shape[2:] != shape[1:]:
            values = scale(values, *shape[1:])
        if reference.dtype == np.uint8:
            values = np.rint(values * 255)
        fitted[start : start + _BLOCK] = values
    return replace(images, pixels=fitted)


def _pixels(settings: ImageTaskSettings, data_root: Path | None) -> tuple[np.ndarray, list[Opened], list[str]]:
    """Return the pixels of all training images of the source, the files that were read, and notes."""
    if settings.source == "embedded":
        note = (
            f"{settings.name}: rotated scikit-learn digits are used instead (transfer.source=embedded). "
            f"Results are not comparable to results with {settings.name}"
        )
        return np.ascontiguousarray(np.rot90(read_digits(settings.shape).pixels, axes=(2, 3))), [], [note]
    if settings.hub is not None:
        splits = {part: name for part, name in settings.hub.splits.items() if part == "train"}
        settings = replace(settings, hub=replace(settings.hub, splits=splits))
    if settings.local is not None:
        settings = replace(settings, local=replace(settings.local, test=[]))
    parts, opened = read_parts(settings, data_root)
    return parts.train.pixels, opened, parts.notes
