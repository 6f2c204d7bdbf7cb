"""Readers of PNG or JPEG images in class folders: ``DIR/<class>/<file>``.

``DIR`` is a folder, or a folder inside a zip file (``archive.zip/DIR``).
"""

from __future__ import annotations

import contextlib
import io
import stat
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, ImageOps

from knot_runner.config.settings.image_tasks import ImageTaskSettings
from knot_runner.data.checksums import DataFolder
from knot_runner.data.images.checks import by_part, check_member
from knot_runner.data.tasks import ImageParts, Images
from knot_runner.provenance.fingerprints import is_hidden
from knot_runner.util.errors import UserError, nearest

SUFFIXES = (".png", ".jpg", ".jpeg")
#: Limits far above any small picture: bytes of an image file, and the compression ratio of an image file in a zip.
_MAX_BYTES = 20_000_000
MAX_RATIO = 200
#: Limits of a zip: members, and bytes of the list of members. Reading a list of a million members takes ten seconds.
MAX_MEMBERS = 300_000
MAX_LIST = 40_000_000


def read_files(folder: DataFolder, settings: ImageTaskSettings) -> ImageParts:
    """Return the images in the folders ``task.local.train``, as uint8. All labels are 0.

    The images of a folder are sorted by file name. If a folder contains no files, the files in its subfolders are
    read instead.

    Raises:
        UserError: A folder or image is missing or invalid. The message names the file.
    """
    images: list[np.ndarray] = []
    for entry in settings.local.train:
        path = folder.path(entry)
        if not path.is_dir():
            raise UserError("expected a folder of images", path)
        is_flat = any(file.is_file() and not is_hidden(file.name) for file in path.iterdir())
        before = len(images)
        for file, data in folder.contents(path, "*" if is_flat else "*/*", check_image_file):
            images.append(decode(str(file), data, settings.shape))
        if len(images) == before:
            raise UserError("no images found", path)
    return ImageParts(Images(np.stack(images), np.zeros(len(images), np.int64)))


@by_part
def read_folders(
    folder: DataFolder, entries: list[str], part: str, settings: ImageTaskSettings
) -> Iterator[tuple[str, Images]]:
    """Yield (entry, images) for each of ``entries``. The images are uint8, sorted by class and file name.

    An entry is a folder with one subfolder per class. The names of the subfolders must be exactly the classes of the
    task. Images are center-cropped and scaled to ``settings.shape``.

    Raises:
        UserError: A folder or image is missing or invalid. The message names the file.
    """
    for entry in entries:
        yield entry, _read(folder, entry, settings.shape, settings.classes)


def _read(folder: DataFolder, entry: str, shape: list[int], classes: list[str]) -> Images:
    archive, inside = _split(folder.root, entry)
    if archive is None:
        path = folder.path(entry)
        if not path.is_dir():
            raise UserError("expected a folder with one subfolder per class", path)
        contents = folder.contents(path, "*/*", check_image_file)
        files = ((file.parent.name, str(file), data) for file, data in contents)
    else:
        folder.check(archive)
        files = _zipped(archive, inside)
    rows = []
    for label, name, data in files:
        if label not in classes:
            raise UserError(
                f"folder {label!r} is not in task.classes{nearest(label, classes)}. Add the class, or remove the "
                "folder",
                name,
            )
        rows.append((classes.index(label), name, decode(name, data, shape)))
    rows.sort(key=lambda row: row[:2])
    labels = np.array([label for label, _, _ in rows], dtype=np.int64)
    absent = np.setdiff1d(np.arange(len(classes)), labels)
    if len(absent):
        others = ""
        if len(absent) > 1:
            others = f" and {len(absent) - 1} more of task.classes"
        raise UserError(f"no images for the class {classes[absent[0]]!r}{others}", folder.path(entry))
    return Images(np.stack([row[2] for row in rows]), labels)


def _split(root: Path, entry: str) -> tuple[Path | None, str]:
    """Return the zip file in the path ``entry`` and the folder inside it; (None, "") for a path without a zip."""
    head, zip_end, inside = entry.partition(".zip")
    archive = root / (head + zip_end)
    if zip_end and archive.is_file():
        return archive, inside.strip("/")
    return None, ""


def check_image_file(file: Path) -> None:
    """Check the name and the size of an image file.

    Raises:
        UserError: The name does not end with .png, .jpg or .jpeg, or the file is too large.
    """
    _check_file(str(file), file.name, file.stat().st_size)


def _check_file(where: str, name: str, size: int) -> None:
    if not name.lower().endswith(SUFFIXES):
        raise UserError(f"not an image file ({', '.join(SUFFIXES)})", where, hint="Move it out of the image folder")
    if size > _MAX_BYTES:
        raise UserError(f"has {size} bytes, more than the limit of {_MAX_BYTES}", where)


def _zipped(archive: Path, inside: str) -> Iterator[tuple[str, str, bytes]]:
    try:
        _check_list(archive)
        with zipfile.ZipFile(archive) as file:
            for info in _members(archive, file, inside):
                yield info.filename.split("/")[-2], f"{archive}/{info.filename}", file.read(info)
    except UserError:
        raise
    except Exception as problem:  # zipfile raises errors of several libraries and of the OS
        raise UserError(f"the zip file is truncated or corrupt ({problem})", archive) from None


def _check_list(archive: Path) -> None:
    """Raise an error if the end record of ``archive`` announces too many members, before the member list is read."""
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - (1 << 16) - 22))  # end record and longest possible comment
        tail = file.read()
    record = tail[tail.rfind(b"PK\x05\x06") :]
    size = int.from_bytes(record[12:16], "little")
    if len(record) >= 22 and size > MAX_LIST:
        raise UserError(f"the list of members has {size} bytes, more than the limit of {MAX_LIST}", archive)


def _members(archive: Path, file: zipfile.ZipFile, inside: str) -> list[zipfile.ZipInfo]:
    """Return the image files in folder ``inside``, after checking their sizes and the archive's member names."""
    members = file.infolist()
    if len(members) > MAX_MEMBERS:
        raise UserError(f"has {len(members)} members, more than the limit of {MAX_MEMBERS}", archive)
    if len({info.filename for info in members}) < len(members):
        raise UserError("two members have the same name", archive)
    depth = len(PurePosixPath(inside).parts) + 2
    chosen = []
    for info in members:
        check_member(archive, info.filename, stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR))
        path = PurePosixPath(info.filename)
        if info.is_dir() or is_hidden(path.name) or len(path.parts) != depth or not path.is_relative_to(inside):
            continue
        where = f"{archive}/{info.filename}"
        _check_file(where, path.name, info.file_size)
        if info.file_size > MAX_RATIO * max(info.compress_size, 1):
            raise UserError(f"decompresses to more than {MAX_RATIO} times its size in the zip file", where)
        chosen.append(info)
    return chosen


# ---------------------------------------------------------------------------------------------------------- decoding


#: task.shape's channels -> Pillow's mode of such an image
MODES = {1: "L", 3: "RGB"}
#: Pillow's modes with at most 8 bits per channel. Pillow would reduce 16-bit gray from 65,536 to 256 levels.
READABLE = ("1", "L", "P", "RGB", "LA", "PA", "RGBA", "CMYK")


def decode(where: str, data: bytes, shape: list[int]) -> np.ndarray:
    """Decode a PNG or JPEG file and return the image, uint8 of shape [C, H, W].

    The image is cropped to the largest centered part with the aspect ratio of ``shape``, and then scaled bilinearly.

    Args:
        where: Name of the file in the error message.
        data: Content of the file.
        shape: Shape [C, H, W] of the result.

    Raises:
        UserError: The image cannot be decoded.
    """
    try:
        with warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning):
            image = Image.open(io.BytesIO(data), formats=("PNG", "JPEG"))  # no pixel is decoded yet
    except Exception as problem:
        raise _broken(where, problem) from None
    fitted = ImageOps.fit(_flat(where, image, shape), (shape[2], shape[1]), Image.Resampling.BILINEAR)
    return np.asarray(fitted).reshape(*shape[1:], -1).transpose(2, 0, 1)


def _flat(where: str, image: Image.Image, shape: list[int]) -> Image.Image:
    """Return ``image`` as displayed on a white background, in gray or RGB depending on the channels in ``shape``.

    The image is rotated by its EXIF orientation, and transparent pixels become white. Every reader decodes with this
    function.
    """
    mode = MODES.get(shape[0])
    if mode is None:
        raise UserError(f"expected 1 (gray) or 3 (color) channels for images in files, got {shape[0]}", "task.shape")
    if image.mode not in READABLE:
        raise UserError(f"image mode '{image.mode}' is not supported. Save images in 8-bit grayscale or RGB", where)
    try:
        image.load()
        with contextlib.suppress(Exception):  # unreadable EXIF data: no rotation
            image = ImageOps.exif_transpose(image)
        if not image.has_transparency_data:
            return image.convert(mode)
        layered = image.convert("RGBA")
    except Exception as problem:
        raise _broken(where, problem) from None
    page = Image.new("RGBA", layered.size, "white")
    page.alpha_composite(layered)
    if _is_uniform(page) and not _is_uniform(layered):
        raise UserError("transparent pixels become white, so the image is blank. Use an opaque background", where)
    return page.convert(mode)


def _is_uniform(image: Image.Image) -> bool:
    """Return whether all pixels of an RGBA image are equal."""
    return all(least == largest for least, largest in image.getextrema())


def _broken(where: str, problem: Exception) -> UserError:
    """Return the error of a broken image. Pillow's decoders raise OSError, SyntaxError, struct.error and more."""
    return UserError(f"not a readable PNG or JPEG image ({type(problem).__name__})", where)
