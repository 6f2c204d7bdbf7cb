"""The archive of a bundle, member by member: regular files of POSIX ustar, packed by gzip.

Attacks by archives use links, devices, sparse files and extended headers of any length. A bundle has none of these, so
only a member's header of 512 bytes and as much content as the reader allows are read.
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

_BLOCK = tarfile.BLOCKSIZE
#: Exceptions of a damaged stream, beside ValueError.
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError)


def archive_bytes(members: Mapping[str, bytes]) -> bytes:
    """A ``.tar.gz`` of ``members`` (name -> bytes) in their order, without times, owners and the archive's own name.

    Raises ValueError for a name that is too long for ustar.
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


class Members:
    """Reads the members of an open archive in order. Every method raises ValueError if the archive is damaged."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def header(self) -> tuple[str, int] | None:
        """(Name, bytes of content) of the next member; None after the last one."""
        block = self._read(_BLOCK)
        if not block.strip(b"\0"):
            return None
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
            raise ValueError(f"its member {info.name!r:.100} is no plain file")
        return info.name, info.size

    def content(self, size: int) -> bytes:
        """The ``size`` bytes of content of the member whose header was read last."""
        content = self._read(size)
        self._read(-size % _BLOCK)
        return content

    def _read(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise ValueError("it is cut short")
        return found


@contextmanager
def open_members(path: Path) -> Iterator[Members]:
    """Open the archive at ``path``; inside the context, damage raises ValueError."""
    try:
        with gzip.open(path, "rb") as file:
            yield Members(file)
    except _DAMAGE as problem:
        raise ValueError(str(problem) or type(problem).__name__) from None
