"""Conversion of file records to examples: select columns, add dialogue contexts, and map labels."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np

from knot_runner.config.settings.image_tasks import UNLABELED
from knot_runner.config.settings.text_tasks import DatasetSettings, Labels, TextColumns
from knot_runner.data.readers import FileRecord
from knot_runner.data.tasks import Examples
from knot_runner.util.errors import UserError, counted, nearest

#: Separator between the current utterance and earlier utterances (KNOT's public ERC code).
CONTEXT_MARK = " [SEP] "


@dataclass(slots=True)
class TextRow:
    """A row of a data file: one or two texts, and the label as written in the file.

    ``label`` is None if the data set has no label column.
    """

    line: int
    text: str
    pair: str | None
    label: str | None
    #: kind of client -> the row's client, or None. The kinds are the keys of ``columns.clients``, and ``dialogue`` if
    #: ``columns.dialogue`` is set. The name of a dialogue is unique in the file
    clients: dict[str, str | None]

    @property
    def dialogue(self) -> str | None:
        """Return the name of the row's dialogue, or None."""
        return self.clients.get("dialogue")


@dataclass
class TextTable:
    """The rows of one file, or of one split on the hub, in order.

    Attributes:
        source: The file or split.
        rows: The rows that have text.
        dropped: The number of rows without text.
        read: The number of all rows in the file.
        restarts: The number of dialogues that reuse the id of an earlier dialogue.
    """

    source: str
    rows: list[TextRow]
    dropped: int
    read: int
    restarts: int


def read_table(
    source: str,
    records: Iterable[FileRecord],
    columns: TextColumns,
    where: Mapping[str, object],
    expected: int | None = None,
) -> TextTable:
    """Return a table of the records that match a condition and have text.

    Args:
        source: Name of the file or split in messages.
        records: The records of the file.
        columns: The columns to read.
        where: The condition: a dict from the name of a column to its allowed value, or to a list of allowed values.
        expected: Number of records that the file must have; None for any number.

    Raises:
        UserError: A column is missing in every record, no record remains, or the number of records is not ``expected``.
    """
    unseen = {columns.text, *filter(None, (columns.pair, columns.label)), *where, *listed(columns.dialogue)}
    allowed = {}
    for column, values in where.items():
        if not isinstance(values, list):
            values = [values]
        allowed[column] = set(map(identity, values))
    known = set[str]()
    rows = []
    read = 0
    dropped = 0
    for line, record in records:
        read += 1
        if unseen:
            known |= record.keys()
            unseen -= record.keys()
        if any(identity(record.get(column)) not in values for column, values in allowed.items()):
            continue
        row = _row(source, line, record, columns)
        if row is None:
            dropped += 1
        else:
            rows.append(row)
    if read == 0:
        raise UserError("no rows found", source)
    if expected is not None and read != expected:
        raise UserError(f"expected rows={expected}, got {read}. The file is damaged or from another data set", source)
    if unseen:
        column = min(unseen)
        raise UserError(f"column '{column}' not found{nearest(column, known)}. Check 'columns' and 'where'", source)
    if dropped and not rows:
        raise UserError(f"none of the {read} rows has text. Check columns.text and columns.pair", source)
    if not rows:
        raise UserError(f"none of the {read} rows matches 'where'", source)
    return TextTable(source, rows, dropped, read, _name_dialogues(rows))


def listed(column: str | list[str] | None) -> list[str]:
    """Return a list of the column names in ``column``, which is one name, a list of names, or None."""
    if column is None:
        return []
    return column if isinstance(column, list) else [column]


def _name_dialogues(rows: list[TextRow]) -> int:
    """Replace the ids in ``rows`` by a unique name for each dialogue; return the number of repeated ids.

    A dialogue consists of consecutive rows with the same id. The name of a dialogue is its id or, for an id that occurs
    again, ``id #2``, ``id #3``, ...
    """
    times = Counter[str]()
    for dialogue, members in groupby(rows, attrgetter("dialogue")):
        if dialogue is None:
            continue
        times[dialogue] += 1
        if times[dialogue] > 1:
            for row in members:
                row.clients["dialogue"] = f"{dialogue} #{times[dialogue]}"
    return times.total() - len(times)


def _row(source: str, line: int, record: Mapping[str, object], columns: TextColumns) -> TextRow | None:
    text, pair = (_text(source, line, record, column) for column in (columns.text, columns.pair))
    if text is None or (columns.pair and pair is None):
        return None
    label = raw_label(record.get(columns.label)) if columns.label else None
    clients = {name: _identity_of(record, column) for name, column in columns.clients.items()}
    if columns.dialogue is not None:
        clients["dialogue"] = _identity_of(record, columns.dialogue)
    return TextRow(line, text, pair, label, clients)


def _identity_of(record: Mapping[str, object], column: str | list[str]) -> str | None:
    """Return the identity in one or several columns; None if the record lacks a value in any of these columns.

    With several columns, slashes within the values are doubled, so that different identities have different texts.
    """
    values = [identity(record.get(name)) for name in listed(column)]
    if None in values:
        return None
    if len(values) == 1:
        return values[0]
    return " / ".join(value.replace("/", "//") for value in values)


def identity(value: object) -> str | None:
    """Return the id of a dialogue or speaker as text, or None if the value is missing.

    A value is converted to text by :func:`raw_label`. Null, NaN and blanks are missing values.
    """
    return None if _is_missing(value) else raw_label(value) or None


def _is_missing(value: object) -> bool:
    return value is None or value != value  # NaN differs from itself


def _text(source: str, line: int, record: Mapping[str, object], column: str | None) -> str | None:
    if column is None or _is_missing(value := record.get(column)):
        return None
    if not isinstance(value, str):
        raise UserError(f"line {line}: column '{column}' is not a string: {str(value)[:40]!r}. Check 'columns'", source)
    # a lone surrogate (JSON "\ud800") is not a character, so neither tokenizers nor files accept it
    return value.encode(errors="replace").decode().strip() or None


def raw_label(value: object) -> str:
    """Return a label from a data file as text, in the form that settings use.

    Surrounding blanks are removed, and null becomes "None". The numbers 5 and 5.0 and the text "5.0" all become "5".
    """
    if isinstance(value, float) and value.is_integer():  # also 1e16, which str writes in exponent form
        value = int(value)
    # An integer label needs one form: pandas writes 5 as 5.0 if the column has missing values.
    return re.sub(r"^([+-]?\d+)\.0+$", r"\1", str(value).strip())


def with_context(rows: list[TextRow], previous: int) -> list[str]:
    """Return the text of each row, with earlier texts of the same dialogue appended.

    At most ``previous`` earlier texts are appended, in reverse order, beginning with the text just before the row.
    [SEP] precedes each appended text. A row without a dialogue id has no context.
    """
    texts = []
    earlier = deque[str](maxlen=previous)
    for dialogue, members in groupby(rows, attrgetter("dialogue")):
        earlier.clear()
        for row in members:
            texts.append(CONTEXT_MARK.join([row.text, *earlier]))
            if dialogue is not None:
                earlier.appendleft(row.text)
    return texts


def to_examples(tables: list[TextTable], name: str, data: DatasetSettings, labels: Labels, context: int) -> Examples:
    """Return the rows of all ``tables`` as examples.

    Args:
        tables: The tables.
        name: Name of the data set.
        data: Settings of the data set. ``data.labels`` maps labels in the files to labels of the task. Rows with a
            label in ``data.drop`` are left out, but their texts are still context of later rows.
        labels: Labels of the task.
        context: Largest number of earlier texts that are appended to each text (:func:`with_context`).

    Raises:
        UserError: The label of a row is in neither ``data.labels`` nor ``data.drop``. The message names the file, line
            and label.
    """
    texts = []
    pairs = []
    numbers = []
    clients = {}
    for index, table in enumerate(tables):
        for row, text in zip(table.rows, with_context(table.rows, context), strict=True):
            if row.label in data.drop:
                continue
            texts.append(text)
            if row.pair is not None:
                pairs.append(row.pair)
            numbers.append(_label_number(table, row, name, data, labels))
            row_clients = row.clients
            if row.dialogue is not None and index > 0:  # ids restart in every file
                row_clients = {**row_clients, "dialogue": f"{row.dialogue} of file {index + 1}"}
            for called, client in row_clients.items():
                clients.setdefault(called, []).append(client)
    if not texts:
        raise UserError(f"no rows left, since all labels are in task.datasets.{name}.drop", f"{tables[0].source}")
    return Examples(texts, pairs or None, np.array(numbers, dtype=np.int64), clients)


def _label_number(table: TextTable, row: TextRow, name: str, data: DatasetSettings, labels: Labels) -> int:
    if row.label is None:
        return UNLABELED
    if row.label not in data.labels:
        known = f"task.datasets.{name}.labels"
        if set(data.labels) == set(labels.names):
            known = "task.labels.names"
        raise UserError(
            f"line {row.line}: label {row.label!r:.80} is in neither {known} nor task.datasets.{name}.drop"
            f"{nearest(row.label, data.labels)}",
            table.source,
        )
    return labels.names.index(data.labels[row.label])


def check_raw_labels(name: str, data: DatasetSettings, labels: Labels) -> None:
    """Check the settings that map labels in the files of a data set to labels of the task.

    Raises:
        UserError: ``data.labels`` has a value that is not a label of the task, or a key that is in ``data.drop``.
    """
    where = f"task.datasets.{name}"
    for raw, label in data.labels.items():
        if label not in labels.names:
            raise UserError(f"unknown label '{label}'{nearest(label, labels.names)}", f"{where}.labels.{raw}")
        if raw in data.drop:
            raise UserError(f"label '{raw}' is in 'labels' and 'drop'. Remove it from one of the two", f"{where}.drop")


def table_notes(name: str, tables: Iterable[TextTable]) -> Iterator[str]:
    """Yield notes on rows without text, rows without a dialogue id, and repeated dialogue ids.

    ``name``: name of the data set.
    """
    files = {table.source: table for table in tables}.values()
    if dropped := sum(table.dropped for table in files):
        yield f"{name}: {counted(dropped, 'row')} without text are left out"
    without = sum("dialogue" in row.clients and row.dialogue is None for table in files for row in table.rows)
    if without:
        yield f"{name}: {counted(without, 'row')} without a dialogue id are used without context"
    if restarts := sum(table.restarts for table in files):
        yield (
            f"{name}: {counted(restarts, 'dialogue')} with the id of an earlier dialogue, counted as separate "
            "dialogues. If ids restart, add the columns that distinguish the dialogues to columns.dialogue. If the "
            "rows of a dialogue are not consecutive, sort the file"
        )
