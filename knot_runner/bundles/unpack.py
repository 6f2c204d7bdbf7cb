"""Reads a bundle as untrusted input.

The archive members must match the table of contents, in order. Each member is checked against its digest and written
below a temporary folder, under a name that cannot point outside that folder.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from knot_runner.bundles.manifest import (
    END,
    MANIFEST,
    MAX_MANIFEST,
    Manifest,
    PackedRun,
    open_archive,
    read_content,
    read_header,
    read_manifest,
    strict_json,
)
from knot_runner.bundles.pack import too_much
from knot_runner.records import RESULT_FILE, ROUNDS_FILE, recorded_config, require_result
from knot_runner.report.render.text import plain
from knot_runner.results import RunResult
from knot_runner.util.config_yaml import Config
from knot_runner.util.errors import UserError
from knot_runner.util.files import LogRow


@dataclass(frozen=True)
class BundledRun:
    """An unpacked run.

    Attributes:
        folder: ``<task>/<method>/<run id>``.
        config: The composed settings.
        result: The result.
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
            rows = [strict_json(line) for line in self.log.read_bytes().splitlines()]
        except ValueError as problem:
            raise UserError(f"{where} cannot be read ({problem})") from None
        if not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{where} has an invalid line")
        return rows


def read_bundle(path: Path, temporary: Path) -> list[BundledRun]:
    """Unpack the archive at ``path`` below ``temporary``; return its runs.

    Raises:
        UserError: The archive is damaged, too large or not a bundle, or its files contradict its table of contents
            or a result. The message is one line that names the archive.
    """
    if not path.is_file():
        raise UserError("not a regular file" if path.exists() else "file not found", path)
    try:
        with open_archive(path) as file:
            manifest = _table_of_contents(path, file)
            for run in manifest.runs:
                _unpack(path, run, file, temporary / run.folder)
            if read_header(file) != END:
                raise ValueError(f"it has more files than {MANIFEST} lists")
        return [_bundled(path, run, temporary / run.folder) for run in manifest.runs]
    except ValueError as problem:
        raise UserError(quoted(f"{path}: damaged, or not a bundle of runs: {problem}")) from None
    except UserError as problem:
        raise UserError(quoted(str(problem))) from None


#: Maximum characters of a message that quotes a bundle.
LONGEST_QUOTE = 400


def quoted(text: str) -> str:
    """Return a message about a bundle in one line, without control characters. Long messages lose their middle part."""
    if len(text) > LONGEST_QUOTE:
        text = f"{text[: LONGEST_QUOTE // 2]} ... {text[-LONGEST_QUOTE // 2 :]}"
    return plain(text)


def _table_of_contents(path: Path, file: BinaryIO) -> Manifest:
    """Read the first member.

    Raises:
        ValueError: The first member is not the table of contents.
        UserError: The table of contents lists something that a bundle cannot have.
    """
    name, size = read_header(file)
    if name != MANIFEST or size > MAX_MANIFEST:
        raise ValueError(f"{MANIFEST} is not its first member. Create bundles with 'knot-runner bundle RUN...'")
    manifest = read_manifest(read_content(file, size), str(path))
    sizes = [file.size for run in manifest.runs for file in run.files]
    if problem := too_much(len(sizes), sum(sizes)):
        raise UserError(problem, path)
    return manifest


def _unpack(path: Path, run: PackedRun, archive: BinaryIO, folder: Path) -> None:
    """Write the files of one run into ``folder``, checking each against the table of contents."""
    folder.mkdir(parents=True)
    for file in run.files:
        if read_header(archive) != (run.member(file.name), file.size):
            raise ValueError(f"{run.folder}/{file.name} does not match its position and size in {MANIFEST}")
        content = read_content(archive, file.size)
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise UserError(f"run {run.folder}: {file.name} does not match its checksum", path)
        (folder / file.name).write_bytes(content)


def _bundled(path: Path, run: PackedRun, folder: Path) -> BundledRun:
    """Load one run, checking its files against the checksums in its result."""
    try:
        result = require_result(folder)
        named = f"{result.task}/{result.method}/{result.run_id}"
        if named != run.folder:
            raise UserError(f"{RESULT_FILE} belongs to another run ({named!r})")
        for file in run.files:
            if file.name != RESULT_FILE and result.digest.get(file.name) != file.sha256:
                raise UserError(f"{file.name} does not match its checksum in {RESULT_FILE}")
        return BundledRun(run.folder, recorded_config(folder), result, folder / ROUNDS_FILE)
    except UserError as problem:
        raise UserError(str(problem).removeprefix(f"{folder}/"), f"{path}: run {run.folder}") from None
