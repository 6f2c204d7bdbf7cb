"""``bundle.json``, the table of contents of a bundle: its runs, their files with digests, and who packed it."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

from knot_runner.config.strict import AtMost, build, require
from knot_runner.util.errors import UserError

MANIFEST, FORMAT = "bundle.json", "knot_runner bundle 1"
#: Folder of the runs inside an archive.
RUNS = "runs"
#: Maximum bytes of the table of contents and of a single file.
MAX_MANIFEST, MAX_FILE = 4_000_000, 64_000_000
#: Patterns of a run's folder, ``<task>/<method>/<run id>``, with the names composing allows, and of a file in it;
#: neither can point outside.
_RUN_FOLDER = re.compile(r"\w[\w .+-]*/\w[\w .+-]*/\w[\w-]*")
_FILE_NAME = re.compile(r"\w[\w.-]*")
_LONGEST_NAME = 200


@dataclass(frozen=True)
class PackedFile:
    """A file of a run: ``size`` in bytes and sha256 (hex)."""

    name: str
    size: Annotated[int, AtMost(MAX_FILE)]
    sha256: str

    def __post_init__(self) -> None:
        right = bool(_FILE_NAME.fullmatch(self.name)) and len(self.name) <= _LONGEST_NAME
        require(right, "name", f"{self.name[:_LONGEST_NAME]!r} is no plain file name")
        require(0 <= self.size <= MAX_FILE, "size", f"{self.size} is not from 0 to {MAX_FILE} bytes")
        require(bool(re.fullmatch(r"[0-9a-f]{64}", self.sha256)), "sha256", "is not 64 hexadecimal digits")


@dataclass(frozen=True)
class PackedRun:
    """A run: its ``folder`` (``<task>/<method>/<run id>``), its ``files``, and names of sealed files that were
    ``left_out`` for their size (their digests are in its ``result.json``)."""

    folder: str
    files: list[PackedFile]
    left_out: list[str]

    def __post_init__(self) -> None:
        right = bool(_RUN_FOLDER.fullmatch(self.folder)) and len(self.folder) <= 3 * _LONGEST_NAME
        require(right, "folder", f"{self.folder[:_LONGEST_NAME]!r} is not TASK/METHOD/RUN-ID")
        names = [file.name for file in self.files]
        require(len(set(names)) == len(names), "files", "names a file twice")

    def member(self, name: str) -> str:
        """The name of file ``name`` inside the archive."""
        return f"{RUNS}/{self.folder}/{name}"


@dataclass(frozen=True)
class Manifest:
    """The table of contents. ``code``: version of the code that packed the runs (the code that made each run is in its
    result); ``libraries``, ``platform``: library versions, and Python and machine, of the packing machine."""

    format: str
    code: str
    platform: str
    libraries: dict[str, str]
    runs: list[PackedRun]

    def __post_init__(self) -> None:
        require(self.format == FORMAT, "format", f"is {self.format[:80]!r}; this version reads {FORMAT!r}")
        require(bool(self.runs), "runs", "is empty")
        folders = [run.folder for run in self.runs]
        require(len(set(folders)) == len(folders), "runs", "names a run twice")

    def text(self) -> str:
        """The stored form: JSON with sorted keys."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_manifest(content: bytes, where: str) -> Manifest:
    """Parse the table of contents in ``content``. Raises :class:`UserError`, starting with ``where``, if it is
    invalid."""
    try:
        values = strict_json(content)
    except ValueError as problem:
        raise UserError(f"{where}: {MANIFEST} cannot be read ({problem})") from None
    try:
        return build(Manifest, values, "")
    except UserError as problem:
        raise UserError(f"{where}: {MANIFEST}: {problem}") from None


def strict_json(content: bytes) -> Any:
    """Parse JSON as we write it. Raises ValueError for anything else: NaN, other encodings, too deep nesting, too long
    numbers."""
    try:
        return json.loads(content.decode(), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")
