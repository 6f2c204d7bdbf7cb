"""Reader of bundles. A bundle is untrusted input: its files can be written only below a temporary folder.

Each file of a run must match its checksum in the run's ``result.json``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from knot_runner.bundles.archive import END, open_archive, read_content, read_header, too_much
from knot_runner.records import RESULT_FILE, ROUNDS_FILE, read_record, recorded_config, require_result
from knot_runner.report.render.text import plain
from knot_runner.results import RunResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow

#: Pattern of a member, ``<task>/<method>/<run id>/<file>``, with the names that composing allows. A member that matches
#: cannot point outside the temporary folder.
_MEMBER = re.compile(r"((?:\w[\w .+-]{0,199}/){2}\w[\w-]{0,199})/\w[\w.-]{0,199}")


@dataclass(frozen=True)
class BundledRun:
    """An unpacked run.

    Attributes:
        folder: ``<task>/<method>/<run id>``.
        config: The composed settings of the run.
        result: The recorded result of the run.
        log: Path of ``rounds.jsonl``.
    """

    folder: str
    config: Config
    result: RunResult
    log: Path

    def rows(self) -> list[LogRow]:
        """Return the rows of the log; [] if the run has no log.

        Raises:
            UserError: The log is invalid.
        """
        if not self.log.exists():
            return []
        where = f"run {self.folder}: {ROUNDS_FILE}"
        try:
            lines = self.log.read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line, parse_constant=_no_number) for line in lines]
        except (ValueError, RecursionError):
            raise UserError(f"{where} cannot be read. Expected UTF-8 text with one JSON object per line") from None
        if not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{where} has an invalid line")
        return rows


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not valid JSON")


def read_bundle(path: Path, temporary: Path) -> list[BundledRun]:
    """Unpack the archive at ``path`` into the folder ``temporary``. Return the unpacked runs.

    Raises:
        UserError: The archive is damaged, too large or not a bundle, or a file does not match its checksum. The message
            is one line that names the archive.
    """
    if not path.is_file():
        raise UserError("not a regular file" if path.exists() else "file not found", path)
    try:
        with open_archive(path) as archive:
            folders = _unpack(path, archive, temporary)
        return [_bundled(path, name, temporary / name) for name in folders]
    except ValueError as problem:
        raise UserError(quoted(f"{path}: damaged, or not a bundle of runs: {problem}")) from None
    except UserError as problem:
        raise UserError(quoted(str(problem))) from None


#: Maximum characters of a message that quotes a bundle.
LONGEST_QUOTE = 400


def quoted(text: str) -> str:
    """Return a message as one line without control characters. The message may contain text from a bundle.

    If the message is long, its middle part is removed.
    """
    if len(text) > LONGEST_QUOTE:
        text = f"{text[: LONGEST_QUOTE // 2]} ... {text[-LONGEST_QUOTE // 2 :]}"
    return plain(text)


def _unpack(path: Path, archive: BinaryIO, temporary: Path) -> list[str]:
    """Write all members below ``temporary``; return the folders of their runs.

    Raises:
        ValueError: A member is not a file of a run.
        UserError: The members are too many, or too large.
    """
    folders = {}
    sizes = []
    while (header := read_header(archive)) != END:
        name, size = header
        member = _MEMBER.fullmatch(name)
        if not member:
            raise ValueError(f"its member {name!r} does not have the form TASK/METHOD/RUN-ID/FILE")
        sizes.append(size)
        if problem := too_much(len(sizes), sum(sizes)):
            raise UserError(problem, path)
        file = temporary / name
        if file.exists():
            raise ValueError(f"it contains two files named {name}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(read_content(archive, size))
        folders[member[1]] = True
    if not folders:
        raise ValueError("it has no files. Create bundles with 'knot-runner bundle RUN...'")
    return list(folders)


def _bundled(path: Path, name: str, folder: Path) -> BundledRun:
    """Load the run ``name`` from ``folder``, after checking the files against the checksums in the run's result."""
    try:
        result = require_result(folder)
        named = f"{result.task}/{result.method}/{result.run_id}"
        if named != name:
            raise UserError(f"{RESULT_FILE} belongs to another run ({named!r})")
        for file in folder.iterdir():
            if file.name != RESULT_FILE:
                read_record(folder, result, file.name)
        return BundledRun(name, recorded_config(folder), result, folder / ROUNDS_FILE)
    except UserError as problem:
        raise UserError(str(problem).removeprefix(f"{folder}/"), f"{path}: run {name}") from None
