"""CIFAR-10 and CIFAR-100 as published: binary or python batches, in a folder or a tar archive.

Binary: a label byte (CIFAR-100: coarse, then fine) and 3,072 bytes of 32x32 red, green, blue planes per image.
Python: a pickled dict of ``data`` [N, 3072] and ``labels`` or ``fine_labels``, read by :mod:`.literals`, not unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knot_runner.config.settings import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import by_part, check_image_labels, check_shape, concatenate_images, read_members
from knot_runner.data.images.literals import Refused, read_literals
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

SHAPE = (3, 32, 32)
PIXELS = 3072
MAX_BYTES = 400_000_000  # of a batch file; the official ones have 155 MB at most
#: images of the official releases
CIFAR_SIZES = {"train": 50_000, "test": 10_000}


@dataclass(frozen=True)
class CifarLayout:
    """An official release: its folder, the batch files of train and test, label bytes per record."""

    folder: str
    files: dict[str, list[str]]
    label_bytes: int


_TEN = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
#: where a folder has several releases, the first one here is read
CIFAR_LAYOUTS = (
    CifarLayout("cifar-10-batches-bin", {part: [f"{n}.bin" for n in names] for part, names in _TEN.items()}, 1),
    CifarLayout("cifar-100-binary", {"train": ["train.bin"], "test": ["test.bin"]}, 2),
    CifarLayout("cifar-10-batches-py", _TEN, 1),
    CifarLayout("cifar-100-python", {"train": ["train"], "test": ["test"]}, 2),
)


def read_cifar(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Train and test of releases: each entry is a folder of batches or a tar (.tar.gz) of that folder.

    uint8 [N, 3, 32, 32]; CIFAR-100 by its fine labels. A note reports missing images: a file cut at a record's border
    has no other sign of it. Raises :class:`UserError` naming the file.
    """
    parts = by_part(_read_part)(folder, settings)
    for part, images in (("train", parts.train), ("test", parts.test)):
        if images is not None and len(images) != CIFAR_SIZES[part]:
            size = CIFAR_SIZES[part]
            parts.notes.append(f"{settings.name}: {len(images)} {part} images, where the official release has {size}")
    return parts


def _read_part(folder: DataFolder, entries: list[str], part: str, shape: list[int], classes: list[str]) -> Images:
    batches = []
    for entry in entries:
        for name, content, layout in _batches(folder, folder.path(entry), part):
            check_shape(name, SHAPE, shape)
            images = (_binary if name.endswith(".bin") else _python)(name, content, layout)
            check_image_labels(name, images.labels, len(classes))
            batches.append(images)
    return concatenate_images(f"task.local.{part}", batches)


def _batches(folder: DataFolder, path: Path, part: str) -> Iterator[tuple[str, bytes, CifarLayout]]:
    """Name, bytes and layout of each batch file."""
    if path.is_dir():
        layout = _layout(path, part, {file.name for file in path.iterdir()})
        for name in layout.files[part]:
            file = folder.file(path / name)
            size = file.stat().st_size
            if size > MAX_BYTES:
                raise UserError(f"has {size} bytes, more than {MAX_BYTES}", file)
            yield str(file), file.read_bytes(), layout
        return
    wanted = {f"{layout.folder}/{name}" for layout in CIFAR_LAYOUTS for name in layout.files[part]}
    members = read_members(folder.file(path), wanted, MAX_BYTES)
    layout = _layout(path, part, {name.rpartition("/")[2] for name in members})
    for name in layout.files[part]:
        member = f"{layout.folder}/{name}"
        if member not in members:
            raise UserError(f"has no member {member}", path)
        yield f"{path}/{member}", members[member], layout


def _layout(path: Path, part: str, names: set[str]) -> CifarLayout:
    """The first release that has a file among ``names``."""
    for layout in CIFAR_LAYOUTS:
        if not names.isdisjoint(layout.files[part]):
            return layout
    looked = ", ".join(layout.files[part][0] for layout in CIFAR_LAYOUTS)
    raise UserError(f"holds no {part} batches of CIFAR; looked for {looked}", path)


def _binary(name: str, content: bytes, layout: CifarLayout) -> Images:
    size = layout.label_bytes + PIXELS
    if not content or len(content) % size:
        raise UserError(f"has {len(content)} bytes, not a multiple of {size}; the file is cut short or broken", name)
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    labels = records[:, layout.label_bytes - 1].astype(np.int64)
    return Images(records[:, layout.label_bytes :].reshape(-1, *SHAPE), labels)


def _python(name: str, content: bytes, layout: CifarLayout) -> Images:
    try:
        batch = read_literals(content)
    except Refused as problem:
        raise UserError(f"{problem}; the official batches are plain data", name) from None
    if not isinstance(batch, dict):
        raise UserError(f"holds a {type(batch).__name__}, not the dict of a CIFAR batch", name)
    batch = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    key = "labels" if layout.label_bytes == 1 else "fine_labels"
    data, labels = batch.get("data"), batch.get(key)
    if not isinstance(data, np.ndarray) or data.shape[1:] != (PIXELS,):
        raise UserError(f"its data are no [N, {PIXELS}] array of unsigned bytes", name)
    whole = isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels)
    if not whole or len(labels) != len(data):
        raise UserError(f"its {key} are no list of {len(data)} whole numbers", name)
    return Images(data.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64))
