"""A table of compared runs: keys, counts and measures, as plain data that the terminal and every file are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from knot_runner.report.compare.settings import as_number
from knot_runner.report.statistics import clipped_interval, mean_interval
from knot_runner.report.text import number, spread_text

#: A cell longer than this is cut in the terminal, in Markdown and in LaTeX; CSV and Parquet have all of it.
LONGEST_CELL = 40


@dataclass(frozen=True)
class MeanEstimate:
    """``mean`` over ``n`` runs, ``half`` of its 95% interval (None under two runs); ``top``: the most that a share can
    be, where the interval is cut, as at 0."""

    mean: float
    half: float | None
    n: int
    top: float | None = None

    @property
    def band(self) -> tuple[float | None, float | None]:
        """The interval."""
        return (
            (None, None)
            if self.half is None
            else clipped_interval(self.mean - self.half, self.mean + self.half, self.top)
        )


@dataclass(frozen=True)
class Column:
    """``name``: the whole key, for files; ``head``: short. ``digits``: of a measure. ``kind``: a ``key``'s cells are
    text or None, a ``count``'s whole numbers, a ``measure``'s estimates or None, a ``value``'s numbers or None."""

    name: str
    head: str
    kind: Literal["key", "count", "measure", "value"]
    digits: int = 0


SheetCell = str | int | float | MeanEstimate | None


@dataclass(frozen=True)
class Sheet:
    """``rows``: cells in the order of ``columns``; ``lines``: what one must know to read the numbers."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[SheetCell, ...], ...]
    lines: tuple[str, ...]

    def column(self, index: int) -> list[SheetCell]:
        return [row[index] for row in self.rows]


def mean_estimate(values: Sequence[float], top: float | None = None) -> MeanEstimate | None:
    """Mean and 95% t interval of ``values``; None of none."""
    return MeanEstimate(*mean_interval(values), len(values), top) if values else None


def cell_text(cell: SheetCell, column: Column, runs: int | None = None) -> str:
    """``cell`` as printed; an estimate over fewer values than its row has finished ``runs`` says over how many."""
    if isinstance(cell, MeanEstimate):
        half = "" if cell.half is None else spread_text(cell.mean, cell.half, column.digits, cell.top)
        return number(cell.mean, column.digits) + half + (f" ({cell.n})" if runs is not None and cell.n < runs else "")
    if column.kind == "value" and isinstance(cell, int | float):
        return number(cell, column.digits)
    if cell is None:
        return "" if column.kind == "key" else "-"
    text = str(cell)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."


def printed_rows(sheet: Sheet) -> list[list[str]]:
    """Every cell of ``sheet`` as text, row by row."""
    runs = next((i for i, column in enumerate(sheet.columns) if column.name == "n"), None)
    texts = []
    for row in sheet.rows:
        finished = row[runs] if runs is not None else None
        count = finished if isinstance(finished, int) else None
        texts.append([cell_text(cell, column, count) for cell, column in zip(row, sheet.columns, strict=True)])
    return texts


def frame(sheet: Sheet) -> dict[str, list[str | int | float | None]]:
    """Columns by name, for CSV and Parquet: nothing rounded, each column of one type; an estimate is four columns.

    A column of settings that are all numbers holds numbers, and whole numbers where all are.
    """
    made: dict[str, list[str | int | float | None]] = {}
    for i, column in enumerate(sheet.columns):
        cells = sheet.column(i)
        if column.kind == "measure":
            made |= _spread(column.name, cells)
        elif column.kind == "value":
            made[column.name] = [None if cell is None else float(cell) for cell in cells]
        else:
            made[column.name] = _typed(cells) if column.kind == "key" else cells
    return made


def _spread(name: str, cells: list[SheetCell]) -> dict[str, list[str | int | float | None]]:
    """Mean, low and high of the interval, and the number of runs."""
    found = [cell if isinstance(cell, MeanEstimate) else None for cell in cells]
    return {
        f"{name}.mean": [None if e is None else float(e.mean) for e in found],
        f"{name}.low": [None if e is None else e.band[0] for e in found],
        f"{name}.high": [None if e is None else e.band[1] for e in found],
        f"{name}.n": [0 if e is None else e.n for e in found],
    }


def _typed(cells: list[SheetCell]) -> list[str | int | float | None]:
    numbers = [None if cell is None else as_number(str(cell)) for cell in cells]
    if any(value is None and cell is not None for value, cell in zip(numbers, cells, strict=True)):
        return [None if cell is None else str(cell) for cell in cells]
    if all(value is None or (isinstance(value, int) and abs(value) < 2**53) for value in numbers):
        return list(numbers)
    return [None if value is None else float(value) for value in numbers]
