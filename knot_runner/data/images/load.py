"""Loading an image task from its source, checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.data.checksums import DataFolder, open_folder
from knot_runner.data.images.cifar import read_cifar
from knot_runner.data.images.cuts import hold_out, limited
from knot_runner.data.images.embedded import EMBEDDED_DIGITS, read_digits
from knot_runner.data.images.folders import read_folders
from knot_runner.data.images.hub import read_hub_images
from knot_runner.data.images.idx import read_idx
from knot_runner.data.images.leaf import read_leaf
from knot_runner.data.images.types import Images, ImageTask
from knot_runner.data.images.usps import read_usps
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError


@dataclass(frozen=True)
class _Read:
    """What a source gave, before cuts; ``test`` None where it has no test set."""

    train: Images
    test: Images | None
    user_names: list[str] | None = None
    file_names: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    files: list[Opened] = field(default_factory=list)


def load_images(settings: ImageTaskSettings, data_root: Path | None) -> ImageTask:
    """The images of ``settings.source`` (``data_root``: the folder ``local`` reads), held out and limited.

    Same settings and files, same task, bit for bit. Raises :class:`UserError` naming the key or file.
    """
    if settings.source == "embedded":
        return _embedded(settings)
    read = _local(settings, data_root) if settings.source == "local" else _hub(settings)
    return _finish(settings, read, settings.classes, settings.coordinates)


def _embedded(settings: ImageTaskSettings) -> ImageTask:
    """Ten classes whatever the task's; points on the first ten, where it has as many."""
    note = (
        f"{settings.name}: scikit-learn's handwritten digits stand in (task.source=embedded); "
        f"these numbers say nothing of {settings.name}"
    )
    points = settings.coordinates[: len(EMBEDDED_DIGITS)] if settings.coordinates else None
    read = _Read(read_digits(settings.shape), None, notes=[note])
    return _finish(settings, read, EMBEDDED_DIGITS, points if points and len(points) == len(EMBEDDED_DIGITS) else None)


def _local(settings: ImageTaskSettings, data_root: Path | None) -> _Read:
    source = settings.local
    if source is None:
        raise UserError(f"task.local: is not set, so task.source=local has no {settings.name}")
    if not source.train:
        raise UserError("task.local.train: names no file")
    folder = open_folder(data_root)
    twice = set(source.train) & set(source.test)
    if twice and source.format != "cifar":  # one cifar archive holds both
        raise UserError(f"task.local.test: {min(twice)} is in task.local.train too")
    if source.format == "leaf":
        read = _Read(*read_leaf(folder, source.train, source.test, settings.shape, len(settings.classes)))
        return replace(read, files=folder.files)
    made = {
        part: IMAGE_READERS[source.format](folder, entries, part, settings.shape, settings.classes)
        for part, entries in {"train": source.train, "test": source.test}.items()
        if entries
    }
    notes = _odd_sizes(settings.name, made) if source.format == "cifar" else []
    return _Read(made["train"], made.get("test"), notes=notes, files=folder.files)


def _odd_sizes(name: str, made: dict[str, Images]) -> list[str]:
    """A line where CIFAR's official files have lost images at a record's border, which nothing else shows."""
    return [
        f"{name}: {len(images)} {part} images, where the official release has {CIFAR_SIZES[part]}"
        for part, images in made.items()
        if len(images) != CIFAR_SIZES[part]
    ]


def _hub(settings: ImageTaskSettings) -> _Read:
    if settings.hub is None:
        raise UserError(f"task.hub: is not set, so task.source=hub has no {settings.name}")
    return _Read(*read_hub_images(settings.hub, settings.shape, settings.classes))


def _finish(
    settings: ImageTaskSettings, read: _Read, classes: list[str], coordinates: list[list[float]] | None
) -> ImageTask:
    """Held out, limited, checked."""
    for part, images in (("train", read.train), ("test", read.test)):
        if images is not None and not len(images):
            raise UserError(f"task.{settings.source}: {settings.name} has no {part} images")
    train, test, notes = read.train, read.test, list(read.notes)
    if test is None:
        train, test = hold_out(train, settings.holdout, settings.cut_seed)
        notes.append(_held_out(settings, test))
    if settings.limit is not None:
        train, test = limited(train, test, settings.limit, settings.cut_seed)
    present = len(np.unique(train.labels))
    if present < len(classes):
        notes.append(f"{settings.name}: the training images are of {present} of the {len(classes)} classes")
    return ImageTask(
        settings.name,
        classes,
        coordinates,
        *_alike(train, test),
        settings.mean,
        settings.std,
        settings.source,
        read.user_names,
        read.file_names,
        notes,
        read.files,
    )


def _held_out(settings: ImageTaskSettings, test: Images) -> str:
    of = "the images" if test.users is None else "each writer's images"
    return f"{settings.name}: no test set of its own; {settings.holdout:.0%} of {of}, {len(test)}, are held out"


def _alike(train: Images, test: Images) -> tuple[Images, Images]:
    """Both as bytes, or both as float32 where one is."""
    if train.pixels.dtype == test.pixels.dtype:
        return train, test
    return tuple(
        replace(part, pixels=part.pixels.astype(np.float32) / 255) if part.pixels.dtype == np.uint8 else part
        for part in (train, test)
    )


Reader = Callable[[DataFolder, list[str], str, list[int], list[str]], Images]
#: ``task.local.format`` -> its reader of one part; LEAF's, which must see both parts, is apart
IMAGE_READERS: dict[str, Reader] = {"cifar": read_cifar, "idx": read_idx, "usps": read_usps, "folders": read_folders}
CIFAR_SIZES = {"train": 50_000, "test": 10_000}
