"""Readers of text data files: CSV, JSON lines and DailyDialog, plain or compressed with gzip.

If a file is truncated, damaged or not UTF-8, the readers raise :class:`UserError` with the file's name and the line.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from knot_runner.data.checksums import file_errors, open_unpacked
from knot_runner.util.errors import UserError

#: Line number, counted from 1 (for a CSV row over several lines, the last line), and a dict from column to value.
FileRecord = tuple[int, Mapping[str, object]]

#: Limit in bytes of one line, far above any review. A file with a longer line is broken or hostile.
LONGEST_LINE = 1 << 24
csv.field_size_limit(LONGEST_LINE)  # some texts are longer than Python's limit of 131,072
END_OF_UTTERANCE = "__eou__"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line in the file ``path``.

    Lines are counted from 1. The text keeps its line end, and a byte order mark is removed.

    Raises:
        UserError: The file is empty, or is not a UTF-8 text file.
    """
    number = 0
    try:
        with file_errors(path), open_unpacked(path) as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise UserError(f"line {number}: more than {LONGEST_LINE} bytes, so this is not a text file", path)
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        raise UserError(
            f"line {number}: byte {problem.object[problem.start]:#04x} is not UTF-8. Save the file as UTF-8", path
        ) from None
    if number == 0:
        raise UserError("the file is empty", path)


def read_csv(path: Path, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, dict from column to text) for each row of a CSV file.

    The first line has the names of the columns. Every row must have the same number of fields.
    """
    last = ""

    def lines() -> Iterator[str]:
        nonlocal last
        for _, last in read_lines(path):
            yield last

    reader = csv.reader(lines(), strict=True, delimiter=delimiter)
    try:
        header = next(reader)
        if len(set(header)) < len(header):
            raise UserError(f"line 1: the header repeats a column name: {', '.join(header)}", path)
        for row in filter(None, reader):
            number = reader.line_num
            if len(row) != len(header):
                raise UserError(
                    f"line {number}: {len(row)} fields, but the header has {len(header)}. "
                    "The file is truncated or corrupt",
                    path,
                )
            if not last.endswith("\n"):  # the only sign that the file is truncated
                raise UserError(
                    f"line {number}: the last row has no line end, so it may be truncated. "
                    "If the file is complete, add a line end",
                    path,
                )
            yield number, dict(zip(header, row, strict=True))
    except csv.Error as problem:
        raise UserError(f"line {reader.line_num}: not valid CSV ({problem}). The file may be truncated", path) from None


def read_jsonl(path: Path) -> Iterator[FileRecord]:
    """Yield (line number, JSON object) for each line of a JSON-lines file. Blank lines are skipped."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        yield number, parse_object(f"{path}: line {number}", line)


def parse_object(where: str, text: str | bytes) -> dict[str, Any]:
    """Return the JSON object in ``text``.

    Raises:
        UserError: The text is not a JSON object. The message begins with ``where``.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as problem:
        reason = getattr(problem, "msg", type(problem).__name__)
        raise UserError(f"not valid JSON ({reason}). The file may be truncated", where) from None
    if not isinstance(content, dict):
        raise UserError(f"expected a JSON object, got {type(content).__name__}", where)
    return content


def emotion_file(path: Path) -> Path:
    """Return the path of DailyDialog's emotion labels for the text file ``path``.

    For example, ``dialogues_X.txt`` gives ``dialogues_emotion_X.txt``.
    """
    return path.with_name(path.name.replace("dialogues_", "dialogues_emotion_", 1))


def read_dailydialog(path: Path) -> Iterator[FileRecord]:
    """Yield (line number, dict from column to value) for each utterance in ``path``, a text file of DailyDialog.

    Each line of the text file is a dialogue, in which ``__eou__`` ends each utterance. The columns are ``text``,
    ``label`` and ``dialogue``. The labels come from a second file (:func:`emotion_file`).

    Raises:
        UserError: The second file does not match the text file.
    """
    other = emotion_file(path)
    for (number, line), (matching, labels) in zip_longest(read_lines(path), read_lines(other), fillvalue=(0, "")):
        if not matching:
            raise UserError(f"ends before line {number}, unlike {path.name}. One of the two files is truncated", other)
        if not number:
            raise UserError(
                f"ends before line {matching}, unlike {other.name}. One of the two files is truncated", path
            )
        *utterances, rest = line.strip().split(END_OF_UTTERANCE)
        if rest.strip():
            raise UserError(f"line {number}: does not end with {END_OF_UTTERANCE}. The line may be cut off", path)
        marks = labels.split()
        if len(marks) != len(utterances):
            raise UserError(
                f"line {number}: {len(utterances)} utterances, but {len(marks)} emotions in the same line of "
                f"{other.name}",
                path,
            )
        for text, label in zip(utterances, marks, strict=True):
            yield number, {"text": text, "label": label, "dialogue": str(number)}


def checked_text_reader(where: str, reader: Callable[..., Iterator[FileRecord]]) -> Callable[..., Iterator[FileRecord]]:
    """Return a function that calls a plug-in's text reader and checks every record.

    Args:
        where: Name of the reader in error messages.
        reader: The reader.
    """

    @functools.wraps(reader)
    def read(*arguments: Any, **options: Any) -> Iterator[FileRecord]:
        for record in reader(*arguments, **options):
            if not (isinstance(record, tuple) and len(record) == 2 and isinstance(record[1], Mapping)):
                raise UserError(f"{where} yielded {record!r:.60} instead of (line number, columns)")
            yield record

    return read
