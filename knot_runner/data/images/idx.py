"""idx files (MNIST, Fashion-MNIST), plain or gzip: a magic number, sizes, then one byte per value."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import check_image_labels, check_shape, join_parts
from knot_runner.data.images.types import Images
from knot_runner.util.errors import UserError

#: magic number (two zero bytes, 8 = unsigned byte, number of sizes) of each kind of file
MAGIC = {"images": 0x00000803, "labels": 0x00000801}
#: bytes of one file; the largest published one (EMNIST, 814,255 images) has 0.64e9
MOST = 1 << 31


def read_idx(folder: DataFolder, entries: list[str], part: str, shape: list[int], classes: list[str]) -> Images:
    """Images of ``entries``: pairs of files, images then labels. ``part`` (train, test) is for errors only.

    Raises :class:`UserError` for a wrong magic number, a file cut short or too long, and counts that do not agree.
    """
    if len(entries) % 2:
        raise UserError(f"task.local.{part}: has {len(entries)} files; idx needs pairs, [images, labels]")
    paths = [folder.file(folder.path(entry)) for entry in entries]
    pairs = zip(paths[::2], paths[1::2], strict=True)
    return join_parts(f"task.local.{part}", [_pair(images, labels, shape, len(classes)) for images, labels in pairs])


def _pair(images: Path, labels: Path, shape: list[int], classes: int) -> Images:
    pixels, numbers = read_array(images, "images"), read_array(labels, "labels").astype(np.int64)
    if len(pixels) != len(numbers):
        raise UserError(f"{labels}: has {len(numbers)} labels, but {images.name} has {len(pixels)} images")
    check_shape(images, (1, *pixels.shape[1:]), shape)
    check_image_labels(labels, numbers, classes)
    return Images(pixels[:, None], numbers)


def read_array(path: Path, kind: str) -> np.ndarray:
    """The values of one file: uint8 [N, H, W] for ``kind`` images, [N] for labels."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            return _array(path, file, kind)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise UserError(f"{path}: the gzip file is cut short or broken ({problem})") from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror or problem}") from None


def _array(path: Path, file: BinaryIO, kind: str) -> np.ndarray:
    sizes = 3 if kind == "images" else 1
    head = file.read(4 * (1 + sizes))
    if len(head) >= 4 and (found := int.from_bytes(head[:4], "big")) != MAGIC[kind]:
        raise UserError(f"{path}: begins with {found:#010x}; a file of {kind} begins with {MAGIC[kind]:#010x}")
    if len(head) < 4 * (1 + sizes):
        raise UserError(f"{path}: ends inside its first {4 * (1 + sizes)} bytes")
    shape = struct.unpack(f">{sizes}I", head[4:])
    wanted = math.prod(shape)
    if wanted > MOST:
        raise UserError(f"{path}: claims {'x'.join(map(str, shape))} values, more than {MOST} bytes")
    body = file.read(wanted + 1)
    if len(body) != wanted:
        found = f"{len(body)}" if len(body) < wanted else "more"
        raise UserError(f"{path}: claims {'x'.join(map(str, shape))} = {wanted} bytes of values, but has {found}")
    return np.frombuffer(body, np.uint8).reshape(shape)
