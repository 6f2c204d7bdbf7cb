"""Readers of files with plain numbers: idx files (MNIST, Fashion-MNIST), and the text files of USPS.

The files may be compressed with gzip. An idx file begins with a magic number and the sizes of an array, followed by one
byte per value. Each line of a USPS file (zip.train, zip.test) has a label and 256 gray levels in [-1, 1].
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder, file_errors, open_unpacked
from knot_runner.data.images.checks import by_part, check_image_labels, sides
from knot_runner.data.readers import read_lines
from knot_runner.data.tasks import Images
from knot_runner.util.errors import UserError

#: Magic number of each kind of file: two zero bytes, 8 for unsigned bytes, and the number of sizes.
MAGIC = {"images": 0x00000803, "labels": 0x00000801}
#: Limit in bytes of one file. The largest published file (EMNIST, 814,255 images) has 0.64e9.
MOST = 1 << 31
#: height and width of a USPS digit
USPS_SIDE = 16


@by_part
def read_idx(
    folder: DataFolder, entries: list[str], part: str, settings: ImageTaskSettings
) -> Iterator[tuple[Path, Images]]:
    """Yield the path and the images of each image file. The images are uint8 of shape [N, 1, H, W].

    In ``entries``, each image file is followed by its label file.

    Raises:
        UserError: A magic number or file size is wrong, or the numbers of images and labels differ.
    """
    if len(entries) % 2:
        raise UserError(f"expected pairs [images, labels], got {len(entries)} files", f"task.local.{part}")
    paths = [folder.file(folder.path(entry)) for entry in entries]
    for images, labels in zip(paths[::2], paths[1::2], strict=True):
        pixels = _read_array(images, "images")
        numbers = _read_array(labels, "labels").astype(np.int64)
        if len(pixels) != len(numbers):
            raise UserError(f"has {len(numbers)} labels, but {images.name} has {len(pixels)} images", labels)
        check_image_labels(labels, numbers, len(settings.classes))
        yield images, Images(pixels[:, None], numbers)


def _read_array(path: Path, kind: str) -> np.ndarray:
    """Return the content of an idx file as uint8: images of shape [N, H, W], or labels [N], as ``kind`` selects."""
    sizes = MAGIC[kind] & 0xFF
    head_bytes = 4 * (1 + sizes)
    with file_errors(path), open_unpacked(path) as file:
        head = file.read(head_bytes)
        magic = int.from_bytes(head[:4], "big")
        if len(head) >= 4 and magic != MAGIC[kind]:
            raise UserError(f"begins with {magic:#010x}, but a file of {kind} begins with {MAGIC[kind]:#010x}", path)
        if len(head) < head_bytes:
            raise UserError(f"truncated within the header of {head_bytes} bytes", path)
        shape = struct.unpack(f">{sizes}I", head[4:])
        wanted = math.prod(shape)
        named = sides(shape)
        if wanted > MOST:
            raise UserError(f"declares {named} values of one byte, more than the limit of {MOST} bytes", path)
        body = file.read(wanted + 1)
    if len(body) != wanted:
        size = f"{len(body)}" if len(body) < wanted else "more"
        raise UserError(f"declares {named} = {wanted} bytes of values, but contains {size}", path)
    return np.frombuffer(body, np.uint8).reshape(shape)


@by_part
def read_usps(
    folder: DataFolder, entries: list[str], part: str, settings: ImageTaskSettings
) -> Iterator[tuple[Path, Images]]:
    """Yield the path and the images of each text file in ``entries``.

    The images are float32 of shape [N, 1, 16, 16], with values from 0 to 1.

    Raises:
        UserError: A line is truncated or invalid. The message names the file and the line.
    """
    for entry in entries:
        path = folder.file(folder.path(entry))
        table = np.array([_digit(f"{path}: line {number}", line) for number, line in read_lines(path)], np.float32)
        pixels = (table[:, 1:].reshape(-1, 1, USPS_SIDE, USPS_SIDE) + 1) / 2
        yield path, Images(pixels, table[:, 0].astype(np.int64))


def _digit(where: str, line: str) -> np.ndarray:
    """Return the label and the 256 gray levels of one ``line`` as one array, float64 [257]."""
    values = line.split()
    levels = USPS_SIDE * USPS_SIDE
    if not line.endswith("\n"):
        raise UserError("no line end. The file is truncated", where)
    if len(values) != 1 + levels:
        raise UserError(f"expected a label and {levels} gray levels, got {len(values)} values in total", where)
    try:
        row = np.array(values, dtype=np.float64)
    except ValueError as problem:
        raise UserError(f"{problem}", where) from None
    if not (row[0].is_integer() and abs(row[0]) < 1e6):
        raise UserError(f"label {values[0][:20]} is not a class number", where)
    if not (np.abs(row[1:]) <= 1).all():  # also if NaN
        raise UserError("a gray level is not in [-1, 1]", where)
    return row
