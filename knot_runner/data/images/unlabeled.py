"""Images of another data set than the task's, without their labels: the transfer set of a distillation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.config.settings.tasks.images import UNLABELED, UNLABELED_FORMAT, transfer_keys
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import sides
from knot_runner.data.images.decoding import decode
from knot_runner.data.images.digits import read_digits, scale
from knot_runner.data.images.folders import check_image_file
from knot_runner.data.images.load import open_source, read_parts, unit_pixels
from knot_runner.data.images.views import GRAY_WEIGHTS
from knot_runner.data.tasks import Images, ImageTask
from knot_runner.provenance.fingerprints import Opened, is_hidden
from knot_runner.util.errors import UserError

#: Images that are converted at once, so that their float64 copies are small.
_BLOCK = 4096


@dataclass(frozen=True, eq=False)
class UnlabeledImages:
    """Training images of the data set ``name``, in file order, every label -1; ``files``: what was read of them."""

    name: str
    images: Images
    files: list[Opened] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def load_unlabeled(settings: ImageTaskSettings, data_root: Path | None) -> UnlabeledImages:
    """The training images of ``settings.source``, ``settings.max_examples`` of them (drawn by ``cut_seed``).

    Labels are hidden before anything is drawn, so none decides what is read. Raises :class:`UserError` naming the key
    below ``transfer`` or the file.
    """
    try:
        pixels, files, notes = _pixels(settings, data_root)
    except UserError as problem:  # readers know the keys of a task
        raise UserError(transfer_keys(str(problem))) from None
    count, most = len(pixels), settings.max_examples
    if most is not None and most > count:
        raise UserError(
            f"{most} images are asked for, but {settings.name} has {count}; at most {count}, or null for all, is right",
            "transfer.max_examples",
        )
    if most is not None:
        chosen = np.random.default_rng(settings.cut_seed).permutation(count)[:most]
        pixels = pixels[np.sort(chosen)]
    labels = np.full(len(pixels), UNLABELED, dtype=np.int64)
    return UnlabeledImages(settings.name, Images(pixels, labels), files, notes)


def with_transfer(task: ImageTask, other: UnlabeledImages) -> ImageTask:
    """``task`` with ``other`` as its transfer set, in the shape and type of its own images. Raises
    :class:`UserError`."""
    images = fit_images(other.images, task.train.pixels)
    note = f"transfer={other.name}: {len(images)} images of another data set are the transfer set"
    before, after = other.images.pixels.shape[1:], images.pixels.shape[1:]
    if before != after:
        note += f", scaled from {sides(before)} to {sides(after)}"
    files = {file.path: file for file in (*task.files, *other.files)}
    notes = [*task.notes, *other.notes, note]
    return replace(task, transfer=images, notes=notes, files=list(files.values()))


def fit_images(images: Images, like: np.ndarray) -> Images:
    """``images`` in the shape and type of the pixels ``like`` [N, C, H, W] uint8 or float32: gray in all channels, or
    gray of colors; bilinear, as in a task of several sets; uint8 rounded. Raises :class:`UserError`."""
    pixels, shape = images.pixels, like.shape[1:]
    channels, wanted = pixels.shape[1], shape[0]
    if channels != wanted and {channels, wanted} != {1, 3}:
        raise UserError(
            f"images of {channels} channels, where task.shape has {wanted}; equal, or 1 and 3, is right",
            "transfer.shape",
        )
    if pixels.shape[1:] == shape and pixels.dtype == like.dtype:
        return images
    fitted = [_fit(pixels[at : at + _BLOCK], shape) for at in range(0, len(images), _BLOCK)]
    if like.dtype == np.uint8:
        fitted = [np.rint(block * 255) for block in fitted]
    return replace(images, pixels=np.concatenate([block.astype(like.dtype) for block in fitted]))


def _fit(pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """float64 [n, *shape] in 0..1 of ``pixels`` [n, C, H, W]."""
    found = unit_pixels(pixels, np.float64)
    if found.shape[1] == 3 and shape[0] == 1:
        found = np.tensordot(np.array(GRAY_WEIGHTS), found, axes=(0, 1))[:, None]
    if found.shape[2:] != shape[1:]:
        found = scale(found, *shape[1:])
    return np.broadcast_to(found, (len(found), *shape))


def _pixels(settings: ImageTaskSettings, data_root: Path | None) -> tuple[np.ndarray, list[Opened], list[str]]:
    """All training images of the source, the files that they are from, and notes."""
    if settings.source == "embedded":
        note = (
            f"{settings.name}: scikit-learn's handwritten digits, turned by 90 degrees, stand in "
            f"(transfer.source=embedded); these numbers say nothing of {settings.name}"
        )
        return np.ascontiguousarray(np.rot90(read_digits(settings.shape).pixels, axes=(2, 3))), [], [note]
    hub, local = settings.hub, settings.local
    if hub is not None:
        splits = {key: name for key, name in hub.splits.items() if key == "train"}
        settings = replace(settings, hub=replace(hub, splits=splits))
    if local is not None:
        settings = replace(settings, local=replace(local, test=[]))
    if settings.source == "local" and local is not None and local.format == UNLABELED_FORMAT:
        folder = open_source(settings, data_root, formats=(UNLABELED_FORMAT,))
        files = (one for entry in local.train for one in _image_files(folder, entry))
        found = [decode(str(path), data, settings.shape) for path, data in files]
        return np.stack(found), folder.files, []
    parts, opened = read_parts(settings, data_root)
    return parts.train.pixels, opened, parts.notes


def _image_files(folder: DataFolder, entry: str) -> Iterator[tuple[Path, bytes]]:
    """Path and bytes of each PNG or JPEG file in the folder ``entry``, or, where it has none, in its folders."""
    path = folder.path(entry)
    if not path.is_dir():
        raise UserError("is not there, or no folder of images", path)
    flat = any(file.is_file() and not is_hidden(file.name) for file in path.iterdir())
    count = 0
    for found in folder.contents(path, "*" if flat else "*/*", check_image_file):
        count += 1
        yield found
    if not count:
        raise UserError("there is no image", path)
