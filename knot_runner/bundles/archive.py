"""Format of a bundle: regular files named ``TASK/METHOD/RUN-ID/FILE`` in POSIX ustar format, compressed with gzip.

Links, devices, sparse files and extended headers are refused, because malicious archives use them.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from knot_runner.util.shared_memory import size_text

#: Limits of a bundle: the number of files, the bytes of all files together, and the bytes of one file.
MAX_FILES = 900
MAX_BUNDLE_BYTES = 300_000_000
MAX_FILE = 64_000_000
#: Result of :func:`read_header` after the last member of an archive.
END = "", 0
#: Exceptions that reading a damaged stream raises, in addition to ValueError.
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError)


def archive_bytes(members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a ``.tar.gz`` archive of ``members``, a dict from file name to content.

    The same members in the same order give the same bytes, because the archive contains no times or owners.

    Raises:
        ValueError: A name is too long for the ustar format.
    """
    file = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT, encoding="utf-8") as tar,
    ):
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def too_much(files: int, size: int) -> str:
    """Return an error text if a bundle has too many files or is too large; otherwise "".

    Args:
        files: Number of files.
        size: Total size of the files in bytes.
    """
    if files <= MAX_FILES and size <= MAX_BUNDLE_BYTES:
        return ""
    return (
        f"{files} files with {size_text(size)} in total exceed the limits ({MAX_FILES} files, "
        f"{size_text(MAX_BUNDLE_BYTES)})"
    )


def read_header(file: BinaryIO) -> tuple[str, int]:
    """Read the header of the next member of the open archive. Return the member's name and size in bytes.

    After the last member, return :data:`END`.

    Raises:
        ValueError: The archive is damaged.
    """
    block = _read(file, tarfile.BLOCKSIZE)
    if not block.strip(b"\0"):
        return END
    info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not 0 <= info.size <= MAX_FILE:
        raise ValueError(f"its member {info.name!r} is not a regular file, or is larger than {size_text(MAX_FILE)}")
    return info.name, info.size


def read_content(file: BinaryIO, size: int) -> bytes:
    """Return the content of the member whose header was read last.

    Args:
        file: The open archive.
        size: Size of the content in bytes.

    Raises:
        ValueError: The archive is truncated.
    """
    content = _read(file, size)
    _read(file, -size % tarfile.BLOCKSIZE)
    return content


def _read(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise ValueError("it is truncated")
    return content


@contextmanager
def open_archive(path: Path) -> Iterator[BinaryIO]:
    """Context manager: open the archive at ``path``. Reading damaged data raises ValueError."""
    try:
        with gzip.open(path, "rb") as file:
            yield file
    except _DAMAGE as problem:
        raise ValueError(str(problem) or type(problem).__name__) from None
