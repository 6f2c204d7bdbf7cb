"""Format of a bundle: its table of contents ``bundle.json`` (runs, and files with checksums) and its archive.

The archive consists of regular files in POSIX ustar format, compressed with gzip.

Malicious archives rely on links, devices, sparse files or very long extended headers. Bundles contain no such members.
The reader therefore reads only each member's 512-byte header and a limited amount of content.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

from knot_runner.config.strict import AtMost, build, require
from knot_runner.records import other_version
from knot_runner.util.errors import UserError

MANIFEST = "bundle.json"
#: Folder of the runs inside an archive.
RUNS = "runs"
#: Maximum bytes of the table of contents and of a single file.
MAX_MANIFEST, MAX_FILE = 4_000_000, 64_000_000
#: Patterns of a run's folder, ``<task>/<method>/<run id>``, with the names composing allows, and of a file in it;
#: neither can point outside.
_RUN_FOLDER = re.compile(r"(\w[\w .+-]{0,199}/){2}\w[\w-]{0,199}")
_FILE_NAME = re.compile(r"\w[\w.-]{0,199}")


@dataclass(frozen=True)
class PackedFile:
    """A file of a run, with its ``size`` in bytes and its SHA-256 digest in hex."""

    name: str
    size: Annotated[int, AtMost(MAX_FILE)]
    sha256: str

    def __post_init__(self) -> None:
        require(bool(_FILE_NAME.fullmatch(self.name)), "name", f"{self.name[:200]!r} is not a plain file name")
        require(self.size >= 0, "size", f"expected 0 to {MAX_FILE} bytes, got {self.size}")
        require(bool(re.fullmatch(r"[0-9a-f]{64}", self.sha256)), "sha256", "expected 64 hexadecimal digits")


@dataclass(frozen=True)
class PackedRun:
    """A run in a bundle.

    Attributes:
        folder: ``<task>/<method>/<run id>``.
        files: The packed files.
        left_out: Names of files that are too large to pack. Their checksums are in ``result.json``.
    """

    folder: str
    files: list[PackedFile]
    left_out: list[str]

    def __post_init__(self) -> None:
        require(bool(_RUN_FOLDER.fullmatch(self.folder)), "folder", f"{self.folder[:200]!r} is not TASK/METHOD/RUN-ID")
        require(len({file.name for file in self.files}) == len(self.files), "files", "a file is listed twice")

    def member(self, name: str) -> str:
        """Return the name of file ``name`` inside the archive."""
        return f"{RUNS}/{self.folder}/{name}"


@dataclass(frozen=True)
class Manifest:
    """The table of contents: the knot_runner version that packed the runs, and the packed runs."""

    written_by: str
    runs: list[PackedRun]

    def __post_init__(self) -> None:
        require(bool(self.runs), "runs", "no runs listed")
        require(len({run.folder for run in self.runs}) == len(self.runs), "runs", "a run is listed twice")

    def text(self) -> str:
        """Return the stored form: JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(content: bytes, where: str) -> Manifest:
    """Parse the table of contents in ``content``.

    Raises:
        UserError: The table of contents is invalid. The message begins with ``where``.
    """
    try:
        values = strict_json(content)
    except ValueError as problem:
        raise UserError(f"{MANIFEST} cannot be read ({problem})", where) from None
    if isinstance(values, dict) and (problem := other_version(values)):
        raise UserError(f"{problem}. Repeat the command to recreate it", where)
    try:
        return build(Manifest, values, "")
    except UserError as problem:
        raise UserError(f"{MANIFEST}: {problem}", where) from None


def strict_json(content: bytes) -> Any:
    """Parse JSON in the form that knot_runner writes.

    Raises:
        ValueError: The content is not UTF-8 or not valid JSON, has NaN or too long numbers, or is nested too
            deeply.
    """
    try:
        return json.loads(content.decode(), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


#: Header after the last member of an archive.
END = "", 0
#: Exceptions of a damaged stream, beside ValueError.
_DAMAGE = (OSError, EOFError, zlib.error, tarfile.TarError)


def archive_bytes(members: Mapping[str, bytes]) -> bytes:
    """Return a ``.tar.gz`` of ``members`` (name -> bytes) in their order.

    The archive stores no times, owners or archive name, so the same members always give the same bytes.

    Raises:
        ValueError: A name is too long for ustar.
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


def read_header(file: BinaryIO) -> tuple[str, int]:
    """Return (name, content size in bytes) of the next member of an open archive; :data:`END` after the last one.

    Raises ValueError if the archive is damaged.
    """
    block = _read(file, tarfile.BLOCKSIZE)
    if not block.strip(b"\0"):
        return END
    info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
        raise ValueError(f"its member {info.name!r} is not a plain file")
    return info.name, info.size


def read_content(file: BinaryIO, size: int) -> bytes:
    """Return the content of the member whose header was read last, ``size`` bytes. Raises ValueError if truncated."""
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
    """Open the archive at ``path``. Inside the block, damaged data raises ValueError."""
    try:
        with gzip.open(path, "rb") as file:
            yield file
    except _DAMAGE as problem:
        raise ValueError(str(problem) or type(problem).__name__) from None
