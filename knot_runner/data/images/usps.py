"""USPS digits as text (zip.train, zip.test; plain or gzip): on each line a label, then 256 grey levels in [-1, 1]."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import check_image_labels, check_shape, join_parts
from knot_runner.data.images.types import Images
from knot_runner.data.readers import read_lines
from knot_runner.util.errors import UserError

SIDE = 16


def read_usps(folder: DataFolder, entries: list[str], part: str, shape: list[int], classes: list[str]) -> Images:
    """Images of the files ``entries``, float32 [N, 1, 16, 16] in 0..1. ``part`` (train, test) is for errors only."""
    paths = [folder.file(folder.path(entry)) for entry in entries]
    for path in paths:
        check_shape(path, (1, SIDE, SIDE), shape)
    return join_parts(f"task.local.{part}", [_read(path, len(classes)) for path in paths])


def _read(path: Path, classes: int) -> Images:
    rows = []
    for number, line in read_lines(path):
        if not line.endswith("\n"):
            raise UserError(f"{path}: line {number}: has no line end; the file is cut short")
        rows.append(_row(path, number, line.split()))
    table = np.array(rows, dtype=np.float32)
    labels = table[:, 0].astype(np.int64)
    check_image_labels(path, labels, classes)
    return Images((table[:, 1:].reshape(-1, 1, SIDE, SIDE) + 1) / 2, labels)


def _row(path: Path, number: int, words: list[str]) -> np.ndarray:
    if len(words) != 1 + SIDE * SIDE:
        raise UserError(f"{path}: line {number}: {len(words)} values instead of a label and {SIDE * SIDE} grey levels")
    try:
        row = np.array(words, dtype=np.float64)
    except ValueError as problem:
        raise UserError(f"{path}: line {number}: {problem}") from None
    if not (row[0].is_integer() and abs(row[0]) < 1e6):
        raise UserError(f"{path}: line {number}: label {words[0][:20]} is no class number")
    if not (np.abs(row[1:]) <= 1).all():  # so written that NaN is refused
        raise UserError(f"{path}: line {number}: a grey level is not in [-1, 1]")
    return row
