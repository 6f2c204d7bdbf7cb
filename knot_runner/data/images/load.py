"""Loading an image task from its source, checked before anything is trained; and coordinates of its classes, whose
distances measure how bad a confusion is."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from knot_runner.config.plugins import Table, checked, unlike
from knot_runner.config.settings import ImageTaskSettings, Labels
from knot_runner.config.settings.families import call
from knot_runner.data.checksums import DataFolder, open_folder
from knot_runner.data.images.checks import ImageReader, by_part, images_problem
from knot_runner.data.images.digits import EMBEDDED_DIGITS, read_digits
from knot_runner.data.splits import hold_out, limited
from knot_runner.data.tasks import ImageParts, Images, ImageTask, repeated_note
from knot_runner.util.errors import UserError, nearest

#: Of superclasses: distance between two classes of one of them, and of two.
WITHIN, ACROSS = 1.0, 2.0


def class_points(settings: ImageTaskSettings) -> list[list[float]] | None:
    """One point per class [C][d] by ``task.geometry``; None where it is "given" and no coordinates are."""
    if settings.geometry == "onehot":
        return one_hot(len(settings.classes))
    if settings.geometry == "superclasses":
        return superclass_points(settings.classes, settings.superclasses)
    return settings.coordinates


def one_hot(classes: int) -> list[list[float]]:
    """Unit vectors [C][C]: every two sqrt(2) apart."""
    return np.eye(classes).tolist()


def label_space(classes: list[str], coordinates: list[list[float]] | None) -> Labels:
    """``classes`` at their ``coordinates``; every two equally far apart where there are none."""
    return Labels(classes, coordinates or one_hot(len(classes)), "semantic")


def superclass_points(classes: list[str], superclasses: dict[str, list[str]]) -> list[list[float]]:
    """Points [C][C + S], ``WITHIN`` apart in one superclass and ``ACROSS`` in two: a class's unit vector and that of
    its superclass, scaled, one after the other."""
    of = {name: number for number, members in enumerate(superclasses.values()) for name in members}
    own = WITHIN / math.sqrt(2) * np.eye(len(classes))
    shared = math.sqrt((ACROSS**2 - WITHIN**2) / 2) * np.eye(len(superclasses))[[of[name] for name in classes]]
    return np.hstack([own, shared]).tolist()


def _problem(parts: object, folder: DataFolder, settings: ImageTaskSettings) -> str:
    """What is wrong with the ``parts`` that a plug-in read."""
    if not isinstance(parts, ImageParts):
        return unlike(parts, ImageParts, "ImageParts")
    if parts.train is None:
        return "no training images"
    named = (("train", parts.train), ("test", parts.test))
    problems = [(name, images_problem(images, settings)) for name, images in named if images is not None]
    return next((f"{problem} ({name})" for name, problem in problems if problem), "")


#: ``task.local.format`` -> its reader, imported on first use. Plug-ins may add theirs.
IMAGE_READERS: Table[ImageReader] = Table("IMAGE_READERS", {
    "cifar": partial(call, "knot_runner.data.images.cifar:read_cifar"),
    "leaf": partial(call, "knot_runner.data.images.leaf:read_leaf"),
    "idx": by_part(partial(call, "knot_runner.data.images.idx:read_idx")),
    "usps": by_part(partial(call, "knot_runner.data.images.idx:read_usps")),
    "folders": by_part(partial(call, "knot_runner.data.images.folders:read_folders")),
    "gld23k": partial(call, "knot_runner.data.images.gld23k:read_gld23k"),
}, lambda where, reader: checked(where, reader, _problem))  # fmt: skip


def load_images(settings: ImageTaskSettings, data_root: Path | None) -> ImageTask:
    """The images of ``settings.source`` (``data_root``: the folder that ``local`` reads), held out and limited.

    Same settings and files, same task, bit for bit.
    Raises :class:`UserError` naming the key or file.
    """
    classes, folder = settings.classes, None
    if settings.source == "embedded":
        parts, classes = _embedded(settings), EMBEDDED_DIGITS
    elif settings.source == "local":
        folder = open_source(settings, data_root)
        parts = IMAGE_READERS[settings.local.format](folder, settings)
    else:
        from knot_runner.data.hub import read_hub_images

        parts = read_hub_images(settings)
    coordinates = class_points(settings)
    if settings.source == "embedded":
        coordinates = _first_points(coordinates)
    train, test, notes = _split(settings, parts)
    present = len(np.unique(train.labels))
    if present < len(classes):
        notes.append(f"{settings.name}: the training images are of {present} of the {len(classes)} classes")
    train, test = same_dtype(train, test)
    notes += repeated_note(settings.name, train, test)
    files = folder.files if folder else []
    return ImageTask(
        settings.name, classes, coordinates, train, test, settings.mean, settings.std, settings.source,
        parts.user_names, parts.file_names, notes, files,
    )  # fmt: skip


def _embedded(settings: ImageTaskSettings) -> ImageParts:
    note = (
        f"{settings.name}: scikit-learn's handwritten digits stand in (task.source=embedded); "
        f"these numbers say nothing of {settings.name}"
    )
    return ImageParts(read_digits(settings.shape), None, notes=[note])


def _first_points(coordinates: list[list[float]] | None) -> list[list[float]] | None:
    """The points of the first ten classes, for the ten digits; None where there are fewer."""
    digits = len(EMBEDDED_DIGITS)
    return coordinates[:digits] if coordinates and len(coordinates) >= digits else None


def open_source(
    settings: ImageTaskSettings, data_root: Path | None, formats: Container[str] | None = None
) -> DataFolder:
    """The data folder, after the checks of ``task.local`` that need no file; ``formats``: those that can be read, by
    default :data:`IMAGE_READERS`. Raises :class:`UserError`."""
    formats = IMAGE_READERS if formats is None else formats
    source = settings.local
    if source is None:
        raise UserError(f"is not set, so task.source=local has no {settings.name}", "task.local")
    if not source.train:
        raise UserError("names no file", "task.local.train")
    if source.format not in formats:
        raise UserError(f"no reader '{source.format}'{nearest(source.format, IMAGE_READERS)}", "task.local.format")
    folder = open_folder(data_root)
    twice = set(source.train) & set(source.test)
    if twice and source.format != "cifar":  # one cifar archive holds both
        raise UserError(f"{min(twice)} is in task.local.train too", "task.local.test")
    return folder


def _split(settings: ImageTaskSettings, parts: ImageParts) -> tuple[Images, Images, list[str]]:
    """(train, test, notes): test held out where the source has none, both limited."""
    train, test, notes = parts.train, parts.test, list(parts.notes)
    for part, images in (("train", train), ("test", test)):
        if images is not None and not len(images):
            raise UserError(f"{settings.name} has no {part} images", f"task.{settings.source}")
    if test is None:
        train, test = hold_out(train, settings.holdout, settings.cut_seed)
        of = "the images" if test.users is None else "each writer's images"
        share = f"{settings.holdout:.0%} of {of}, {len(test)}, are held out"
        notes.append(f"{settings.name}: no test set of its own; {share}")
    if settings.max_examples is not None:
        train, test = limited(train, test, settings.max_examples, settings.cut_seed)
    return train, test, notes


def same_dtype(*parts: Images) -> list[Images]:
    """All as uint8, or all as float32 where one is."""
    if len({part.pixels.dtype for part in parts}) == 1:
        return list(parts)
    return [
        replace(part, pixels=part.pixels.astype(np.float32) / 255) if part.pixels.dtype == np.uint8 else part
        for part in parts
    ]
