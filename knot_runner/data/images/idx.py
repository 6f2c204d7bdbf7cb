"""Files of plain numbers, or gzip of them: idx (MNIST, Fashion-MNIST) and USPS text.

idx: a magic number, sizes, then one byte per value. USPS (zip.train, zip.test): on each line a label, then 256 gray
levels in [-1, 1].
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from knot_runner.data.checksums import DataFolder, open_unpacked
from knot_runner.data.images.checks import check_image_labels, check_shape, concatenate_images
from knot_runner.data.readers import read_lines
from knot_runner.data.tasks import Images
from knot_runner.util.errors import UserError

#: magic number (two zero bytes, 8 = unsigned byte, number of sizes) of each kind of file
MAGIC = {"images": 0x00000803, "labels": 0x00000801}
#: bytes of one file; the largest published one (EMNIST, 814,255 images) has 0.64e9
MOST = 1 << 31
#: height and width of a USPS digit
USPS_SIDE = 16


def read_idx(folder: DataFolder, entries: list[str], part: str, shape: list[int], classes: list[str]) -> Images:
    """Images of ``entries``, pairs of files: images, then labels. uint8 [N, 1, H, W].

    Raises :class:`UserError` for a wrong magic number, a file cut short or too long, and counts that do not agree.
    """
    if len(entries) % 2:
        raise UserError(f"has {len(entries)} files; idx needs pairs, [images, labels]", f"task.local.{part}")
    paths = [folder.file(folder.path(entry)) for entry in entries]
    pairs = zip(paths[::2], paths[1::2], strict=True)
    files = [_read_pair(images, labels, shape, len(classes)) for images, labels in pairs]
    return concatenate_images(f"task.local.{part}", files)


def _read_pair(images: Path, labels: Path, shape: list[int], classes: int) -> Images:
    pixels, numbers = _read_array(images, "images"), _read_array(labels, "labels").astype(np.int64)
    if len(pixels) != len(numbers):
        raise UserError(f"has {len(numbers)} labels, but {images.name} has {len(pixels)} images", labels)
    check_shape(images, (1, *pixels.shape[1:]), shape)
    check_image_labels(labels, numbers, classes)
    return Images(pixels[:, None], numbers)


def _read_array(path: Path, kind: str) -> np.ndarray:
    """uint8 [N, H, W] of a file of ``kind`` images, [N] of labels."""
    try:
        with open_unpacked(path) as file:
            return _array(path, file, kind)
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise UserError(f"the gzip file is cut short or broken ({problem})", path) from None
    except OSError as problem:
        raise UserError(f"cannot be read: {problem.strerror or problem}", path) from None


def _array(path: Path, file: BinaryIO, kind: str) -> np.ndarray:
    sizes = 3 if kind == "images" else 1
    head = file.read(4 * (1 + sizes))
    if len(head) >= 4 and (magic := int.from_bytes(head[:4], "big")) != MAGIC[kind]:
        raise UserError(f"begins with {magic:#010x}; a file of {kind} begins with {MAGIC[kind]:#010x}", path)
    if len(head) < 4 * (1 + sizes):
        raise UserError(f"ends inside its first {4 * (1 + sizes)} bytes", path)
    shape = struct.unpack(f">{sizes}I", head[4:])
    wanted = math.prod(shape)
    if wanted > MOST:
        raise UserError(f"claims {'x'.join(map(str, shape))} values, more than {MOST} bytes", path)
    body = file.read(wanted + 1)
    if len(body) != wanted:
        size = f"{len(body)}" if len(body) < wanted else "more"
        raise UserError(f"claims {'x'.join(map(str, shape))} = {wanted} bytes of values, but has {size}", path)
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_usps(folder: DataFolder, entries: list[str], part: str, shape: list[int], classes: list[str]) -> Images:
    """Images of the text files ``entries``, float32 [N, 1, 16, 16] in 0..1. Raises :class:`UserError`."""
    paths = [folder.file(folder.path(entry)) for entry in entries]
    for path in paths:
        check_shape(path, (1, USPS_SIDE, USPS_SIDE), shape)
    return concatenate_images(f"task.local.{part}", [_read_digits(path, len(classes)) for path in paths])


def _read_digits(path: Path, classes: int) -> Images:
    rows = []
    for number, line in read_lines(path):
        if not line.endswith("\n"):
            raise UserError(f"line {number}: has no line end; the file is cut short", path)
        rows.append(_digit(path, number, line.split()))
    table = np.array(rows, dtype=np.float32)
    labels = table[:, 0].astype(np.int64)
    check_image_labels(path, labels, classes)
    return Images((table[:, 1:].reshape(-1, 1, USPS_SIDE, USPS_SIDE) + 1) / 2, labels)


def _digit(path: Path, number: int, values: list[str]) -> np.ndarray:
    """float64 [257]: the label and the gray levels of one line."""
    levels = USPS_SIDE * USPS_SIDE
    if len(values) != 1 + levels:
        raise UserError(f"line {number}: {len(values)} values instead of a label and {levels} gray levels", path)
    try:
        row = np.array(values, dtype=np.float64)
    except ValueError as problem:
        raise UserError(f"line {number}: {problem}", path) from None
    if not (row[0].is_integer() and abs(row[0]) < 1e6):
        raise UserError(f"line {number}: label {values[0][:20]} is no class number", path)
    if not (np.abs(row[1:]) <= 1).all():  # so written that NaN is refused
        raise UserError(f"line {number}: a gray level is not in [-1, 1]", path)
    return row
