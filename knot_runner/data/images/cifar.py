"""CIFAR-10 and CIFAR-100 in the official binary version, in a folder or a tar archive.

Each image is a record of label bytes (CIFAR-100: coarse, then fine) and 3,072 bytes: 32x32 planes of red, green and
blue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import by_part, check_image_labels, check_shape, concatenate_images, read_members
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.util.errors import UserError

SHAPE = (3, 32, 32)
PIXELS = 3072
MAX_BYTES = 400_000_000  # of a batch file; the official ones have 154 MB at most
#: images of the official releases
CIFAR_SIZES = {"train": 50_000, "test": 10_000}


@dataclass(frozen=True)
class CifarLayout:
    """An official release: its folder, its train and test batch files, and the number of label bytes per record."""

    folder: str
    files: dict[str, list[str]]
    label_bytes: int


#: If a folder has both releases, the first one is read.
CIFAR_LAYOUTS = (
    CifarLayout(
        "cifar-10-batches-bin", {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}, 1
    ),
    CifarLayout("cifar-100-binary", {"train": ["train.bin"], "test": ["test.bin"]}, 2),
)


def read_cifar(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Return train and test images. Each entry is a batch folder or a tar archive (.tar, .tar.gz) of that folder.

    The images are uint8 [N, 3, 32, 32]; CIFAR-100 uses the fine labels. A note reports missing images, because a file
    that was truncated between two records shows no other sign of damage.

    Raises:
        UserError: A file is damaged. The message names the file.
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
        for name, content, label_bytes in _batches(folder, folder.path(entry), part):
            check_shape(name, SHAPE, shape)
            size = label_bytes + PIXELS
            if not content or len(content) % size:
                text = f"has {len(content)} bytes, not a multiple of {size}. The file is truncated or corrupt"
                raise UserError(text, name)
            records = np.frombuffer(content, np.uint8).reshape(-1, size)
            labels = records[:, label_bytes - 1].astype(np.int64)
            check_image_labels(name, labels, len(classes))
            batches.append(Images(records[:, label_bytes:].reshape(-1, *SHAPE), labels))
    return concatenate_images(f"task.local.{part}", batches)


def _batches(folder: DataFolder, path: Path, part: str) -> Iterator[tuple[str, bytes, int]]:
    """Yield the name and content of each batch file, and the number of label bytes per record."""
    if path.is_dir():
        layout = _layout(path, part, {file.name for file in path.iterdir()})
        for name in layout.files[part]:
            file = folder.file(path / name)
            size = file.stat().st_size
            if size > MAX_BYTES:
                raise UserError(f"has {size} bytes, more than the limit of {MAX_BYTES}", file)
            yield str(file), file.read_bytes(), layout.label_bytes
        return
    wanted = {f"{layout.folder}/{name}" for layout in CIFAR_LAYOUTS for name in layout.files[part]}
    members = read_members(folder.file(path), wanted, MAX_BYTES)
    layout = _layout(path, part, {name.rpartition("/")[2] for name in members})
    for name in layout.files[part]:
        member = f"{layout.folder}/{name}"
        if member not in members:
            raise UserError(f"member {member} is missing", path)
        yield f"{path}/{member}", members[member], layout.label_bytes


def _layout(path: Path, part: str, names: set[str]) -> CifarLayout:
    """Return the first release in ``CIFAR_LAYOUTS`` that has a file among ``names``."""
    for layout in CIFAR_LAYOUTS:
        if not names.isdisjoint(layout.files[part]):
            return layout
    looked = ", ".join(layout.files[part][0] for layout in CIFAR_LAYOUTS)
    hint = "Use the binary version of the release, such as cifar-10-binary.tar.gz"
    raise UserError(f"no CIFAR {part} batches found. Looked for {looked}", path, hint=hint)
