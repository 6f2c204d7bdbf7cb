"""Several image data sets as one task, with one client each: the input of distances between data sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from knot_runner.data.checksums import archives, missing_entries
from knot_runner.data.images.digits import EMBEDDED_DIGITS, read_digits, scale
from knot_runner.data.images.load import load_images, same_dtype, unit_pixels
from knot_runner.data.tasks import Images, ImageTask, Partition
from knot_runner.papers.fedwad.settings import ImageSetsSettings
from knot_runner.provenance.fingerprints import Opened, absent
from knot_runner.util.errors import UserError

#: ``source=embedded``: name -> change of the pixels [N, C, H, W] uint8 of its quarter of the digits.
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
#: images of one data set and its classes
NamedSet = tuple[str, Images, list[str]]


def load_image_sets(settings: ImageSetsSettings, data_root: Path | None) -> tuple[ImageTask, Partition]:
    """Return the training images of all sets, concatenated and scaled to ``settings.shape``, and each set's rows.

    A class is named "set: class", so that no two sets share one. The task has no test images.

    Raises:
        UserError: The message names the key or file.
    """
    notes: list[str] = []
    files: dict[str, Opened] = {}
    embedded = settings.source == "embedded"
    sets = list(_stand_ins(settings, notes) if embedded else _read(settings, data_root, notes, files))
    if len(sets) < 2:
        raise UserError(f"only {len(sets)} of {len(settings.sets)} data sets found, but two are required", "task.sets")
    classes: list[str] = []
    labels, rows, first = [], [], 0
    for name, part, own in sets:
        labels.append(part.labels + len(classes))
        classes += [f"{name}: {label}" for label in own]
        rows.append(np.arange(first, first + len(part)))
        first += len(part)
    pixels = [part.pixels for part in same_dtype(*(part for _, part, _ in sets))]
    images = Images(np.concatenate(pixels), np.concatenate(labels))
    nothing = np.empty(0, np.int64)
    statistics, test = (settings.mean, settings.std), images.take(nothing)
    read = list(files.values())
    task = ImageTask(settings.name, classes, None, images, test, *statistics, settings.source, files=read)
    return task, Partition([name for name, _, _ in sets], rows, [nothing] * len(sets), notes)


def _stand_ins(settings: ImageSetsSettings, notes: list[str]) -> Iterator[NamedSet]:
    """Yield sets of scikit-learn's digits, each with every fourth digit, so that no image is in two sets."""
    notes.append(EMBEDDED_NOTE.format(name=settings.name, sets=", ".join(settings.sets)))
    digits = read_digits(settings.shape)
    for number, (name, change) in enumerate(STAND_INS.items()):
        part = digits.take(np.arange(number, len(digits), len(STAND_INS)))
        yield name, replace(part, pixels=np.ascontiguousarray(change(part.pixels))), EMBEDDED_DIGITS


def _read(
    settings: ImageSetsSettings, root: Path | None, notes: list[str], files: dict[str, Opened]
) -> Iterator[NamedSet]:
    """Yield each set that exists; extend ``notes`` and ``files`` (read or found missing)."""
    for name, one in settings.sets.items():
        if gone := _missing(settings, name, root):
            files.update((path, absent(path)) for entry in gone for path in (entry, *archives(entry)))
            more = f", and {len(gone) - 1} more" if gone[1:] else ""
            notes.append(f"{name}: left out, missing files: {gone[0]}{more}")
            continue
        task = load_images(replace(one, source=settings.source), root)
        notes.extend(task.notes)
        files.update((file.path, file) for file in task.files)
        yield name, _scaled(task.train, settings.shape), task.classes


def check_set_files(settings: ImageSetsSettings, root: Path) -> None:
    """Raise the :class:`UserError` of :func:`load_image_sets` if files of a local set are missing."""
    for name in settings.sets:
        _missing(settings, name, root)


def _missing(settings: ImageSetsSettings, name: str, root: Path | None) -> list[str]:
    """Return the missing files of a set of ``source=local`` that is left out; [] for a set that exists.

    Raises:
        UserError: The set must not be left out, or only some of its files exist.
    """
    one = settings.sets[name]
    if settings.source != "local" or root is None or one.local is None:
        return []
    gone = missing_entries(one.local, root)
    if gone and len(gone) < len({*one.local.train, *one.local.test}):
        raise UserError(
            f"file not found (data set {name}), but others of {name} exist. Add the file, or remove the others", gone[0]
        )
    if gone and name not in settings.may_be_missing:
        raise UserError(f"file not found (data set {name}). To run without {name}, use task.missing=[{name}]", gone[0])
    return gone


def _scaled(images: Images, shape: list[int]) -> Images:
    """Return ``images`` at the height and width of ``shape``.

    They are unchanged if they fit, otherwise scaled bilinearly to float32 in 0..1.
    """
    if images.pixels.shape[2:] == tuple(shape[1:]):
        return images
    pixels = scale(unit_pixels(images.pixels, np.float64), *shape[1:])
    return Images(pixels.astype(np.float32), images.labels)
