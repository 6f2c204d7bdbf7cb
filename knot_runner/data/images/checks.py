"""Checks of shapes and labels for image readers, and a reader of tar archives.

A failed check raises :class:`UserError` with the name of the file. Reading an archive writes nothing to the disk.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from knot_runner.config.plugins import checked, unlike
from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder, open_unpacked
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

#: Function that reads the train and test images of ``task.local``.
ImageReader = Callable[[DataFolder, ImageTaskSettings], ImageParts]
#: Function that reads the files of one split: (folder, entries, "train" or "test", settings) -> (name, images) of each
#: file.
PartReader = Callable[[DataFolder, list[str], str, ImageTaskSettings], Iterable[tuple[object, Images]]]


def by_part(read: PartReader) -> ImageReader:
    """Return an image reader that calls ``read`` and checks the shape and the labels of the images.

    Args:
        read: Function that yields the images of one part of the data set: train or test.
    """

    def read_part(folder: DataFolder, settings: ImageTaskSettings, part: str) -> Images:
        pixels = []
        labels = []
        for file, images in read(folder, getattr(settings.local, part), part, settings):
            shape = images.pixels.shape[1:]
            if shape != tuple(settings.shape):
                raise UserError(f"its images are {sides(shape)}, but task.shape is {sides(settings.shape)}", file)
            check_image_labels(file, images.labels, len(settings.classes))
            pixels.append(images.pixels)
            labels.append(images.labels)
        if not any(map(len, labels)):
            raise UserError("no images found", f"task.local.{part}")
        return Images(np.concatenate(pixels), np.concatenate(labels))

    def read_parts(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
        train = read_part(folder, settings, "train")
        return ImageParts(train, read_part(folder, settings, "test") if settings.local.test else None)

    return read_parts


def check_image_labels(where: object, labels: np.ndarray, classes: int) -> None:
    """Check that all ``labels`` are from 0 to ``classes`` - 1. The error message begins with ``where``."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        first = wrong[0]
        raise UserError(
            f"image {first + 1} has label {labels[first]}, but task.classes has classes 0 to {classes - 1}", where
        )


def checked_image_reader(where: str, reader: ImageReader) -> ImageReader:
    """Return a function that calls a plug-in's image reader and checks the images that it returns.

    Args:
        where: Name of the reader in error messages.
        reader: The reader.
    """
    return checked(where, reader, _problem)


def _problem(parts: object, folder: DataFolder, settings: ImageTaskSettings) -> str:
    """Return what is wrong with the images ``parts`` that a reader returned; "" if all are valid."""
    if not isinstance(parts, ImageParts):
        return unlike(parts, ImageParts, "ImageParts")
    if problem := images_problem(parts.train, settings):
        return f"invalid data in 'train': {problem}"
    if parts.test is not None and (problem := images_problem(parts.test, settings)):
        return f"invalid data in 'test': {problem}"
    return ""


def images_problem(images: object, settings: ImageTaskSettings) -> str:
    """Return a text that describes what is wrong with ``images``; "" if the images are valid.

    Types, lengths, shapes and ranges of values are checked.
    """
    if not isinstance(images, Images):
        return f"{type(images).__name__} instead of Images"
    pixels = images.pixels
    labels = images.labels
    classes = len(settings.classes)
    kinds = [getattr(values, "dtype", type(values).__name__) for values in (pixels, labels)]
    if kinds[0] not in (np.uint8, np.float32):
        return f"pixels of type {kinds[0]} instead of uint8 or float32"
    if pixels.shape[1:] != tuple(settings.shape):
        return f"images of shape {sides(pixels.shape[1:])}, but task.shape is {sides(settings.shape)}"
    if kinds[0] == np.float32 and not 0 <= pixels.min(initial=0) <= pixels.max(initial=0) <= 1:
        return f"float32 pixels with minimum {pixels.min():.4g} and maximum {pixels.max():.4g} (expected 0 to 1)"
    if kinds[1] != np.int64 or labels.ndim != 1:
        return f"labels of type {kinds[1]} instead of int64 [N]"
    for name, values in (("labels", labels), ("writers", images.users), ("files", images.files)):
        if values is not None and len(values) != len(pixels):
            return f"{len(values)} {name} for {len(pixels)} images"
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        return f"labels from {labels.min()} to {labels.max()}, but task.classes has classes 0 to {classes - 1}"
    return ""


def sides(shape: Iterable[int]) -> str:
    """Return ``shape`` as text, such as ``3x32x32`` for three channels of 32x32 pixels."""
    return "x".join(map(str, shape))


#: Limits of a tar: unpacked bytes, and members. The official CIFAR archives have 0.19e9 bytes and 9 members.
MAX_UNFOLDED = 600_000_000
_MAX_MEMBERS = 1000
#: Limit in bytes of an extended header (long names, exact times), because tarfile reads the whole header into memory.
MAX_HEADER = 1_000_000


class _Info(tarfile.TarInfo):
    """The header of an archive member.

    An extended header that is too large raises ValueError before it is read.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read a header block of 512 bytes; called by tarfile."""
        info = super().frombuf(buf, encoding, errors)
        if info.type not in tarfile.REGULAR_TYPES and info.size > MAX_HEADER:
            raise ValueError(f"an extended header has {info.size:,} bytes, more than the limit of {MAX_HEADER:,}")
        return info


class _Capped:
    """A stream that returns at most ``most`` bytes, as a protection against decompression bombs."""

    def __init__(self, path: Path, file: BinaryIO, most: int) -> None:
        self.path, self.file, self.most, self.left = path, file, most, most

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes, or the rest of the stream."""
        block = self.file.read(size)
        self.left -= len(block)
        if self.left < 0:
            raise UserError(f"decompresses to more than {self.most} bytes", self.path)
        return block


def read_members(path: Path, wanted: set[str], most: int) -> dict[str, bytes]:
    """Return a dict from name to content for some members of a .tar or .tar.gz archive.

    Args:
        path: Path of the archive.
        wanted: Names of the members to return. A name that is not in the archive is ignored.
        most: Largest allowed size of a wanted member in bytes.

    Raises:
        UserError: The archive is truncated or too large, a wanted member is too large or repeated, or
            :func:`check_member` refuses a member. The message names the archive.
    """
    contents = {}
    try:
        with open_unpacked(path) as file:
            capped = _Capped(path, file, MAX_UNFOLDED)
            # The archive is read as a stream: nothing is written to the disk, and no name in it becomes a path.
            with tarfile.open(fileobj=capped, mode="r|", tarinfo=_Info) as tar:
                for count, info in enumerate(tar):
                    name = info.name
                    if count >= _MAX_MEMBERS:
                        raise UserError(f"has more members than the limit of {_MAX_MEMBERS}", path)
                    check_member(path, name, (info.isreg() and not info.issparse()) or info.isdir())
                    if name not in wanted or info.isdir():
                        continue
                    if name in contents:
                        raise UserError(f"has two members named {name}", path)
                    if info.size > most:
                        raise UserError(f"member {name} has {info.size} bytes, more than the limit of {most}", path)
                    contents[name] = tar.extractfile(info).read()
    except UserError:
        raise
    except Exception as problem:  # tarfile raises errors of several libraries and of the OS
        raise UserError(f"not a readable tar archive ({problem})", path) from None
    return contents


def check_member(archive: Path, name: str, is_plain: bool) -> None:
    """Check that a member of an archive is a plain file or folder, and that its path is inside the archive.

    Args:
        archive: Path of the archive.
        name: Path of the member in the archive.
        is_plain: Whether the member is a plain file or folder.

    Raises:
        UserError: The member is not allowed. The message names the archive.
    """
    parts = name.replace("\\", "/").split("/")
    if not is_plain:
        raise UserError(f"member {name!r:.100} must not be a link or a device", archive)
    if ".." in parts or parts[0] == "" or parts[0].endswith(":"):
        raise UserError(f"member {name!r:.100} points outside the archive", archive)
