"""Readers of text files: csv, JSON lines and DailyDialog, plain or gzip, row by row.

A file that is cut short, broken or not UTF-8 raises :class:`UserError` naming the file and the line. None of them
guesses: a row that cannot be read whole stops the run before training.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from knot_runner.util.errors import UserError

#: line of the file (from 1; of a csv row over several lines, the last), and the row's columns
FileRecord = tuple[int, dict[str, Any]]

#: characters of one line, far above any review; a longer one is a broken or hostile file
LONGEST_LINE = 1 << 24
#: what csv files of spreadsheets and exports have between fields
DELIMITERS = (",", ";", "\t", "|")
csv.field_size_limit(LONGEST_LINE)  # of the process; Python's 131,072 characters are fewer than some texts have
END_OF_UTTERANCE = "__eou__"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line, its line end kept, a leading byte order mark removed. Raises on an empty file."""
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise UserError(f"{path}: line {number}: longer than {LONGEST_LINE} bytes, so this is no text file")
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        byte = problem.object[problem.start]
        raise UserError(f"{path}: line {number}: byte {byte:#04x} is not UTF-8; save the file as UTF-8") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise UserError(f"{path}: after line {number}: the gzip file is cut short or broken ({problem})") from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror or problem}") from None
    if number == 0:
        raise UserError(f"{path}: is empty")


def read_csv(path: Path, delimiter: str = ",") -> Iterator[FileRecord]:
    """Rows of a csv file with a header line; every row must have as many fields as the header."""
    last = ""

    def texts() -> Iterator[str]:
        nonlocal last
        for _, last in read_lines(path):
            yield last

    reader = csv.reader(texts(), strict=True, delimiter=delimiter)
    try:
        header = next(reader)
        _check_delimiter(path, header)
        if len(set(header)) < len(header):
            raise UserError(f"{path}: line 1: a column name is there twice: {', '.join(header)}")
        for row in reader:
            if row and len(row) != len(header):
                raise UserError(
                    f"{path}: line {reader.line_num}: {len(row)} fields where the header has {len(header)}; "
                    "the file is cut short or broken"
                )
            if row:
                _check_ended(path, reader.line_num, last)
                yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as problem:
        raise UserError(
            f"{path}: line {reader.line_num}: not valid csv ({problem}); the file may be cut short"
        ) from None


def _check_delimiter(path: Path, header: list[str]) -> None:
    """A header of one field that holds another delimiter is of a file written with that one."""
    found = [mark for mark in DELIMITERS if len(header) == 1 and mark in header[0]]
    if found:
        columns = header[0].split(found[0])
        raise UserError(
            f"{path}: line 1: is one column, {header[0][:60]!r}; delimiter: {json.dumps(found[0])} beside format: csv "
            f"reads it as {len(columns)} columns"
        )


def _check_ended(path: Path, number: int, line: str) -> None:
    """A last row without line end may be half a row: refuse, since nothing else would show it."""
    if not line.endswith("\n"):
        raise UserError(
            f"{path}: line {number}: the last row has no line end, so it may be cut short; "
            "end the file with a line end if it is whole"
        )


def read_jsonl(path: Path) -> Iterator[FileRecord]:
    """Objects of a JSON-lines file; blank lines are passed over."""
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            reason = getattr(problem, "msg", type(problem).__name__)
            raise UserError(f"{path}: line {number}: not valid JSON ({reason}); the file may be cut short") from None
        if not isinstance(row, dict):
            raise UserError(f"{path}: line {number}: a JSON object is expected, not a {type(row).__name__}")
        yield number, row


def emotion_file(path: Path) -> Path:
    """The file of emotion numbers beside a DailyDialog text file: dialogues_X.txt -> dialogues_emotion_X.txt."""
    return path.with_name(path.name.replace("dialogues_", "dialogues_emotion_", 1))


def read_dailydialog(path: Path) -> Iterator[FileRecord]:
    """Utterances (columns text, label, dialogue) of a DailyDialog text file and its emotion file.

    One line is one dialogue; ``__eou__`` ends each utterance. Raises where the two files do not match.
    """
    other = emotion_file(path)
    texts, emotions = read_lines(path), read_lines(other)
    for number, line in texts:
        _, labels = next(emotions, (0, None))
        if labels is None:
            raise UserError(f"{other}: ends before line {number} of {path.name}; one of the two is cut short")
        *utterances, rest = line.strip().split(END_OF_UTTERANCE)
        if rest.strip():
            raise UserError(f"{path}: line {number}: the last utterance has no {END_OF_UTTERANCE}; it is cut short")
        marks = labels.split()
        if len(marks) != len(utterances):
            raise UserError(
                f"{path}: line {number}: {len(utterances)} utterances, but {len(marks)} emotions in {other.name}"
            )
        for text, label in zip(utterances, marks, strict=True):
            yield number, {"text": text, "label": label, "dialogue": str(number)}
    if (extra := next(emotions, None)) is not None:
        raise UserError(f"{path}: ends before line {extra[0]} of {other.name}; one of the two is cut short")


TEXT_READERS: dict[str, Callable[..., Iterator[FileRecord]]] = {
    "csv": read_csv,
    "jsonl": read_jsonl,
    "dailydialog": read_dailydialog,
}
