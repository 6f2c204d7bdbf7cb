"""Several data sets of images as one task, each of them a client of its own: what distances between them start from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from knot_runner.config.settings import ImageSetsSettings, ImageTaskSettings
from knot_runner.data.images.embedded import EMBEDDED_DIGITS, read_digits, scale
from knot_runner.data.images.load import load_images
from knot_runner.data.images.types import Images, ImageTask, Partition
from knot_runner.provenance.fingerprints import Opened, absent
from knot_runner.util.errors import UserError

#: ``source=embedded``: name -> what is done to the pixels [N, C, H, W] uint8 of its quarter of the digits.
STAND_INS = {
    "digits": lambda pixels: pixels,
    "other digits": lambda pixels: pixels,
    "digits turned": lambda pixels: np.rot90(pixels, axes=(2, 3)),
    "digits inverted": lambda pixels: 255 - pixels,
}
EMBEDDED_NOTE = (
    "{name}: four quarters of scikit-learn's handwritten digits stand in (task.source=embedded), two as they are, one "
    "turned by 90 degrees, one with grey levels inverted; these numbers say nothing of {sets}"
)


def load_image_sets(settings: ImageSetsSettings, data_root: Path | None) -> tuple[ImageTask, Partition]:
    """The training images of all sets, one after another, scaled to ``settings.shape``; and which rows are whose.

    A class is named "set: class", so that no two sets share one; the task has no test images. Scaling is bilinear
    between pixel centres (as image libraries enlarge; when shrinking, nothing is averaged). Raises
    :class:`UserError` naming the key or file.
    """
    notes: list[str] = []
    files: dict[str, Opened] = {}
    embedded = settings.source == "embedded"
    read = dict(_stand_ins(settings, notes) if embedded else _read(settings, data_root, notes, files))
    if len(read) < 2:
        raise UserError(f"task.sets: {len(read)} of the {len(settings.sets)} data sets are left; two are the least")
    images, classes = _joined(read)
    ends = np.cumsum([len(part) for part, _ in read.values()])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    nothing = np.empty(0, np.int64)
    task = ImageTask(
        settings.name,
        classes,
        None,
        images,
        images.take(nothing),
        settings.mean,
        settings.std,
        settings.source,
        files=list(files.values()),
    )
    return task, Partition(list(read), rows, [nothing] * len(read), notes)


def _joined(read: dict[str, tuple[Images, list[str]]]) -> tuple[Images, list[str]]:
    """All sets' images (float32 where one set's are) and their classes' names."""
    first = np.cumsum([0, *(len(classes) for _, classes in read.values())])
    labels = [part.labels + offset for (part, _), offset in zip(read.values(), first, strict=False)]
    pixels = [part.pixels for part, _ in read.values()]
    if any(part.dtype != np.uint8 for part in pixels):
        pixels = [part.astype(np.float32) / 255 if part.dtype == np.uint8 else part for part in pixels]
    names = [f"{name}: {label}" for name, (_, classes) in read.items() for label in classes]
    return Images(np.concatenate(pixels), np.concatenate(labels)), names


def _stand_ins(settings: ImageSetsSettings, notes: list[str]) -> Iterator[tuple[str, tuple[Images, list[str]]]]:
    """Every fourth digit is of the same set, so that no image is in two."""
    notes.append(EMBEDDED_NOTE.format(name=settings.name, sets=", ".join(settings.sets)))
    digits = read_digits(settings.shape)
    for number, (name, change) in enumerate(STAND_INS.items()):
        part = digits.take(np.arange(number, len(digits), len(STAND_INS)))
        yield name, (replace(part, pixels=np.ascontiguousarray(change(part.pixels))), EMBEDDED_DIGITS)


def _read(
    settings: ImageSetsSettings, root: Path | None, notes: list[str], files: dict[str, Opened]
) -> Iterator[tuple[str, tuple[Images, list[str]]]]:
    """Each set that is there; ``notes`` and ``files`` grow by what is to be said and what was read or not there."""
    for name, one in settings.sets.items():
        if gone := _missing(settings, one, root):
            _check_left_out(settings, name, one, gone)
            files.update((path, absent(path)) for entry in gone for path in (entry, *_archives(entry)))
            notes.append(f"{name}: left out, {gone[0]} not there" + (f", nor {len(gone) - 1} more" if gone[1:] else ""))
            continue
        task = load_images(replace(one, source=settings.source), root)
        notes.extend(task.notes)
        files.update((file.path, file) for file in task.files)
        yield name, (_scaled(task.train, settings.shape), task.classes)


def _check_left_out(settings: ImageSetsSettings, name: str, one: ImageTaskSettings, gone: list[str]) -> None:
    """Raise :class:`UserError` unless none of the set's files is there and it may be left out."""
    if len(gone) < len({*one.local.train, *one.local.test}):
        raise UserError(
            f"{gone[0]}: is not there (for {name}), though other files of {name} are; a set is left out whole or not "
            f"at all: task.sets.{name}.local names what is read"
        )
    if name not in settings.may_be_missing:
        raise UserError(f"{gone[0]}: is not there (for {name}); task.missing=[{name}] goes on without {name}")


def _missing(settings: ImageSetsSettings, one: ImageTaskSettings, root: Path | None) -> list[str]:
    """The files of a set of ``source=local`` that are not there; entries may point into a zip."""
    if settings.source != "local" or root is None or one.local is None:
        return []
    entries = dict.fromkeys([*one.local.train, *one.local.test])
    return [entry for entry in entries if not any((root / path).exists() for path in (entry, *_archives(entry)))]


def _archives(entry: str) -> list[str]:
    """Of ``folder/archive.zip/train``: ``folder/archive.zip``."""
    head, zip_end, _ = entry.partition(".zip/")
    return [head + ".zip"] if zip_end else []


def _scaled(images: Images, shape: list[int]) -> Images:
    """``images`` at the height and width of ``shape``; as they are where they fit, else float32 0..1."""
    if images.pixels.shape[2:] == tuple(shape[1:]):
        return images
    pixels = images.pixels.astype(np.float64) / (255 if images.pixels.dtype == np.uint8 else 1)
    flat = scale(pixels.reshape(-1, *pixels.shape[2:]), *shape[1:])
    return Images(flat.reshape(len(images), *shape).astype(np.float32), images.labels)
