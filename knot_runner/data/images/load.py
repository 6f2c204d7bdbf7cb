"""Load an image task from its source, check it before training, and give its classes coordinates.

The distance between the coordinates of two classes measures how bad a confusion is.
"""

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
from knot_runner.provenance.fingerprints import Opened
from knot_runner.util.errors import UserError, nearest

#: Of superclasses: distance between two classes of one of them, and of two.
WITHIN, ACROSS = 1.0, 2.0


def class_points(settings: ImageTaskSettings) -> list[list[float]] | None:
    """Return one point per class [C][d] by ``task.geometry``; None for "given" without coordinates."""
    if settings.geometry == "onehot":
        return one_hot(len(settings.classes))
    if settings.geometry == "superclasses":
        return superclass_points(settings.classes, settings.superclasses)
    return settings.coordinates


def one_hot(classes: int) -> list[list[float]]:
    """Return unit vectors [C][C]; the distance between any two is sqrt(2)."""
    return np.eye(classes).tolist()


def label_space(classes: list[str], coordinates: list[list[float]] | None) -> Labels:
    """Return ``classes`` at their ``coordinates``; without coordinates, all pairs have the same distance."""
    return Labels(classes, coordinates or one_hot(len(classes)), "semantic")


def superclass_points(classes: list[str], superclasses: dict[str, list[str]]) -> list[list[float]]:
    """Return points [C][C + S] at distance ``WITHIN`` in the same superclass, and ``ACROSS`` in different ones.

    A point is the scaled unit vector of the class, followed by that of its superclass.
    """
    of = {name: number for number, members in enumerate(superclasses.values()) for name in members}
    class_points = WITHIN / math.sqrt(2) * np.eye(len(classes))
    shared = math.sqrt((ACROSS**2 - WITHIN**2) / 2) * np.eye(len(superclasses))[[of[name] for name in classes]]
    return np.hstack([class_points, shared]).tolist()


def _problem(parts: object, folder: DataFolder, settings: ImageTaskSettings) -> str:
    """Return the problem of the ``parts`` that a plug-in read; "" if there is none."""
    if not isinstance(parts, ImageParts):
        return unlike(parts, ImageParts, "ImageParts")
    if parts.train is None:
        return "no training images"
    for name, images in (("train", parts.train), ("test", parts.test)):
        problem = "" if images is None else images_problem(images, settings)
        if problem:
            return f"{problem} ({name})"
    return ""


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
    """Return the images of ``settings.source``, with held-out test images and at most ``max_examples`` of them.

    ``data_root``: the folder of ``local`` sources. Equal settings and files give bitwise equal tasks.

    Raises:
        UserError: The message names the key or file.
    """
    parts, files = read_parts(settings, data_root)
    classes, coordinates = settings.classes, class_points(settings)
    if settings.source == "embedded":
        classes = EMBEDDED_DIGITS
        # those of the first ten classes, if there are so many
        coordinates = coordinates[:10] if coordinates and len(coordinates) >= 10 else None
    train, test, notes = _split(settings, parts)
    present = len(np.unique(train.labels))
    if present < len(classes):
        notes.append(f"{settings.name}: the training images are of {present} of the {len(classes)} classes")
    train, test = same_dtype(train, test)
    notes += repeated_note(settings.name, train, test)
    return ImageTask(
        settings.name, classes, coordinates, train, test, settings.mean, settings.std, settings.source,
        parts.user_names, parts.file_names, notes, files,
    )  # fmt: skip


def read_parts(settings: ImageTaskSettings, data_root: Path | None) -> tuple[ImageParts, list[Opened]]:
    """Return the images of ``settings.source`` from its reader, unchanged, and the files that hold them."""
    if settings.source == "local":
        folder = open_source(settings, data_root)
        return IMAGE_READERS[settings.local.format](folder, settings), folder.files
    if settings.source == "hub":
        from knot_runner.data.hub import read_hub_images

        return read_hub_images(settings), []
    note = (
        f"{settings.name}: scikit-learn's handwritten digits are used instead (task.source=embedded). "
        f"Results are not comparable to results on {settings.name}"
    )
    return ImageParts(read_digits(settings.shape), None, notes=[note]), []


def open_source(
    settings: ImageTaskSettings, data_root: Path | None, formats: Container[str] = IMAGE_READERS
) -> DataFolder:
    """Check ``task.local`` without reading files, and return the data folder.

    ``formats`` lists the formats that can be read.

    Raises:
        UserError: A file is missing, or its format is unknown.
    """
    source = settings.local
    if source is None:
        raise UserError("required by task.source=local, but not set", "task.local")
    if not source.train:
        raise UserError("expected a file", "task.local.train")
    if source.format not in formats:
        raise UserError(f"unknown reader '{source.format}'{nearest(source.format, IMAGE_READERS)}", "task.local.format")
    folder = open_folder(data_root)
    twice = set(source.train) & set(source.test)
    if twice and source.format != "cifar":  # one cifar archive holds both
        raise UserError(f"{min(twice)} is also in task.local.train", "task.local.test")
    return folder


def _split(settings: ImageTaskSettings, parts: ImageParts) -> tuple[Images, Images, list[str]]:
    """Return (train, test, notes). Test images are held out if the source has none. The numbers of both are limited."""
    train, test, notes = parts.train, parts.test, list(parts.notes)
    for part, images in (("train", train), ("test", test)):
        if images is not None and not len(images):
            raise UserError(f"no {part} images found for {settings.name}", f"task.{settings.source}")
    if test is None:
        train, test = hold_out(train, settings.holdout, settings.cut_seed)
        of = "the images" if test.users is None else "each writer's images"
        share = f"{settings.holdout:.0%} of {of}, {len(test)}, are held out"
        notes.append(f"{settings.name}: no test set. {share}")
    if settings.max_examples is not None:
        train, test = limited(train, test, settings.max_examples, settings.cut_seed)
    return train, test, notes


def same_dtype(*parts: Images) -> list[Images]:
    """Return all images as uint8, or all as float32 if one of them is."""
    if len({part.pixels.dtype for part in parts}) == 1:
        return list(parts)
    return [replace(part, pixels=unit_pixels(part.pixels, np.float32)) for part in parts]


def unit_pixels(pixels: np.ndarray, dtype: type[np.floating]) -> np.ndarray:
    """Return ``pixels``, uint8 or floating point, in 0..1 as ``dtype``."""
    floats = pixels.astype(dtype)
    return floats / dtype(255) if pixels.dtype == np.uint8 else floats
