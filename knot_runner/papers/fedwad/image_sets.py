"""Several image data sets as one task, for distances between data sets. Each data set is a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from knot_runner.data.checksums import archives, missing_entries
from knot_runner.data.images.load import EMBEDDED_DIGITS, load_images, read_digits, same_dtype, scale, unit_pixels
from knot_runner.data.tasks import Images, ImageTask, Partition
from knot_runner.papers.fedwad.settings import ImageSetsSettings
from knot_runner.provenance.fingerprints import Opened, absent
from knot_runner.util.errors import UserError

#: Data sets of ``source=embedded``: name -> function that transforms a quarter of the digits (pixels of shape [N, C, H,
#: W], uint8).
STAND_INS = {
    "digits": lambda pixels: pixels,
    "other digits": lambda pixels: pixels,
    "digits turned": lambda pixels: np.rot90(pixels, axes=(2, 3)),
    "digits inverted": lambda pixels: 255 - pixels,
}
EMBEDDED_NOTE = (
    "{name}: four quarters of scikit-learn's handwritten digits are used instead (task.source=embedded): "
    "two unchanged, one rotated by 90 degrees, one inverted. Results are not comparable to published results on {sets}"
)
#: Name of a data set, its images, and the names of its classes.
NamedSet = tuple[str, Images, list[str]]


def load_image_sets(settings: ImageSetsSettings, data_root: Path | None) -> tuple[ImageTask, Partition]:
    """Return a task with the training images of all data sets, and a partition in which each data set is a client.

    The images are scaled to ``settings.shape``. Class names have the form "set: class". The task has no test images.

    Raises:
        UserError: A setting is invalid, or a data set cannot be read.
    """
    notes: list[str] = []
    files: dict[str, Opened] = {}
    embedded = settings.source == "embedded"
    sets = list(_stand_ins(settings, notes) if embedded else _read(settings, data_root, notes, files))
    if len(sets) < 2:
        raise UserError(f"files exist for {len(sets)} of {len(settings.sets)} sets, expected at least two", "task.sets")
    classes: list[str] = []
    labels = []
    for name, part, class_names in sets:
        labels.append(part.labels + len(classes))
        classes += [f"{name}: {label}" for label in class_names]
    names, as_read, _ = zip(*sets, strict=True)
    parts = same_dtype(*as_read)
    images = Images(np.concatenate([part.pixels for part in parts]), np.concatenate(labels))
    rows = np.split(np.arange(len(images)), np.cumsum(list(map(len, parts)))[:-1])
    nothing = np.empty(0, np.int64)
    task = ImageTask(
        settings.name, classes, None, images, images.take(nothing), settings.mean, settings.std, settings.source,
        files=list(files.values()),
    )  # fmt: skip
    return task, Partition(list(names), rows, [nothing] * len(sets), notes)


def _stand_ins(settings: ImageSetsSettings, notes: list[str]) -> Iterator[NamedSet]:
    """Yield disjoint sets of scikit-learn's digits. Each set has every fourth image."""
    notes.append(EMBEDDED_NOTE.format(name=settings.name, sets=", ".join(settings.sets)))
    digits = read_digits(settings.shape)
    for number, (name, change) in enumerate(STAND_INS.items()):
        part = digits.take(np.arange(number, len(digits), len(STAND_INS)))
        yield name, replace(part, pixels=np.ascontiguousarray(change(part.pixels))), EMBEDDED_DIGITS


def _read(
    settings: ImageSetsSettings, root: Path | None, notes: list[str], files: dict[str, Opened]
) -> Iterator[NamedSet]:
    """Yield each data set that exists. Append messages to ``notes``, and files read or found missing to ``files``."""
    for name, image_task in settings.sets.items():
        if gone := _missing(settings, name, root):
            for entry in gone:
                files.update((path, absent(path)) for path in (entry, *archives(entry)))
            more = f", and {len(gone) - 1} more" if gone[1:] else ""
            notes.append(f"{name}: left out, since these files are missing: {gone[0]}{more}")
            continue
        task = load_images(replace(image_task, source=settings.source), root)
        notes.extend(task.notes)
        files.update((file.path, file) for file in task.files)
        yield name, _scaled(task.train, settings.shape), task.classes


def check_set_files(settings: ImageSetsSettings, root: Path) -> None:
    """Check that all required files of local data sets exist.

    Raises:
        UserError: A required file is missing.
    """
    for name in settings.sets:
        _missing(settings, name, root)


def _missing(settings: ImageSetsSettings, name: str, root: Path | None) -> list[str]:
    """Return the missing files of a local data set that will be skipped; [] if the data set exists.

    Raises:
        UserError: The set is not in ``settings.may_be_missing``, or only some of its files exist.
    """
    local = settings.sets[name].local
    if settings.source != "local" or root is None or local is None:
        return []
    gone = missing_entries(local, root)
    if gone and len(gone) < len({*local.train, *local.test}):
        raise UserError(
            f"file not found, but other files of data set {name} exist. Add this file, or remove the other files",
            gone[0],
        )
    if gone and name not in settings.may_be_missing:
        raise UserError(f"file not found (data set {name}). To run without {name}, use task.missing=[{name}]", gone[0])
    return gone


def _scaled(images: Images, shape: list[int]) -> Images:
    """Return ``images`` at the height and width of ``shape``.

    Images that already have this size are returned unchanged. Other images are scaled bilinearly to float32 in 0..1.
    """
    if images.pixels.shape[2:] == tuple(shape[1:]):
        return images
    pixels = scale(unit_pixels(images.pixels, np.float64), *shape[1:])
    return Images(pixels.astype(np.float32), images.labels)
