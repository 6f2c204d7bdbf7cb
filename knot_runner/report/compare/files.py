"""A table of compared runs and its formats: terminal, Markdown, LaTeX, CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from knot_runner.report.compare.settings import KEPT, as_number, typed_column
from knot_runner.report.render.markup import TextGrid, latex_document, markdown_document
from knot_runner.report.render.terminal import DIM, TerminalColumn, fits, results_grid, text_line
from knot_runner.report.render.text import escape_csv, estimate_text, plain
from knot_runner.report.statistics.intervals import Estimate
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd

#: Longer cells are truncated in the terminal, Markdown and LaTeX, but not in CSV.
LONGEST_CELL = 40


@dataclass(frozen=True)
class Column:
    """A column. ``name``: the full key, for files; ``head``: short title; ``digits``: of a measure. ``kind``: cells are
    text (``key``), integers that are never absent (``count``) or estimates (``measure``).
    ``unit``: printed unit, equal to ``factor`` in the cells' unit."""

    name: str
    head: str
    kind: Literal["key", "count", "measure"]
    digits: int = 0
    unit: str = ""
    factor: float = 1.0

    @property
    def printed_head(self) -> str:
        """The head with the unit, if any."""
        return f"{self.head} ({self.unit})" if self.unit else self.head


@dataclass(frozen=True)
class Sheet:
    """A table. ``cells``: a frame with the ``columns`` by name; ``lines``: footnotes."""

    title: str
    columns: Sequence[Column]
    cells: pd.DataFrame
    lines: Sequence[str]

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The cells row by row; None for absent ones."""
        cells = self.cells.astype(object)
        return tuple(cells.where(cells.notna(), None).itertuples(index=False, name=None))


def cell_text(cell: Any, column: Column, runs: int | None = None) -> str:
    """``cell`` as printed; an estimate over fewer values than its row's finished ``runs`` is printed with their
    number."""
    if isinstance(cell, Estimate) and cell.mean is not None:
        half = cell.half and cell.half / column.factor
        text = estimate_text(cell.mean / column.factor, half, column.digits, cell.top)
        return f"{text} ({cell.n})" if runs is not None and cell.n < runs else text
    if cell is None:
        return "" if column.kind == "key" else "-"
    text = str(cell)
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 3]}..."


def printed_rows(sheet: Sheet) -> list[list[str]]:
    """Every cell of ``sheet`` as text, row by row."""
    finished = sheet.cells["n"] if "n" in sheet.cells else [None] * len(sheet.cells)
    return [
        [cell_text(cell, column, runs) for cell, column in zip(row, sheet.columns, strict=True)]
        for row, runs in zip(sheet.rows, finished, strict=True)
    ]


@dataclass(frozen=True)
class TerminalSheet:
    """Rich renderable of a sheet for any width: measures that do not fit go to further blocks."""

    sheet: Sheet

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sheet = self.sheet
        shown = _shown(sheet)
        leading = sum(column.kind != "measure" for column in sheet.columns)
        lead = shown[:leading]
        measures = shown[leading:]
        if not fits(_grid([*lead, *measures[:1]]), console, options):
            lead = _joined(sheet, lead)
        blocks = [lead]
        for one in measures:
            longer = [*blocks[-1], one]
            if len(longer) > len(lead) + 1 and not fits(_grid(longer), console, options):
                blocks.append([*lead, one])
            else:
                blocks[-1] = longer
        yield text_line(sheet.title, "bold")
        for block in blocks:
            yield from (text_line(""), _grid(block))
        yield text_line("")
        yield from (text_line(text, DIM) for text in sheet.lines)


#: A column as printed, and its cells.
_Shown = tuple[TerminalColumn, list[str]]


def _shown(sheet: Sheet) -> list[_Shown]:
    texts = [[plain(text) for text in row] for row in printed_rows(sheet)]
    shown = []
    for i, column in enumerate(sheet.columns):
        cells, (name, space, rest) = [row[i] for row in texts], plain(column.printed_head).partition(" (")
        head = Text(name.replace(".", "\n") + space + rest)
        right = column.kind != "key" or all(as_number(text) is not None for text in cells if text)
        shown.append((TerminalColumn(head, right, no_wrap=True, overflow="fold"), cells))
    return shown


def _joined(sheet: Sheet, lead: list[_Shown]) -> list[_Shown]:
    """The lead columns with all keys except task, method and run id merged into one column of ``key=value``."""
    own: list[_Shown] = []
    rest = []
    for column, (printed, cells) in zip(sheet.columns, lead, strict=False):
        if column.kind != "key" or column.name in (*KEPT, "run_id"):
            own.append((printed, cells))
        else:
            rest.append([f"{plain(column.head)}={value}" if value else "" for value in cells])
    if rest:
        place = next((i for i, (printed, _) in enumerate(own) if printed.right), len(own))
        joined = [" ".join(filter(None, row)) for row in zip(*rest, strict=True)]
        own.insert(place, (TerminalColumn(Text("settings"), overflow="fold"), joined))
    return own


def _grid(columns: list[_Shown]) -> Table:
    rows = zip(*(cells for _, cells in columns), strict=True)
    return results_grid([printed for printed, _ in columns], rows, head_style=DIM)


def _text_grid(sheet: Sheet) -> TextGrid:
    return TextGrid(
        [column.printed_head for column in sheet.columns], [column.kind != "key" for column in sheet.columns],
        printed_rows(sheet),
    )  # fmt: skip


def sheet_markdown(sheet: Sheet) -> str:
    """GitHub Markdown: the table, then the footnotes as a list."""
    return markdown_document(sheet.title, [_text_grid(sheet)], sheet.lines)


def sheet_latex(sheet: Sheet) -> str:
    """A ``table`` environment for booktabs, with the footnotes below."""
    return latex_document(sheet.title, [_text_grid(sheet)], sheet.lines)


def exact_frame(sheet: Sheet) -> pd.DataFrame:
    """The cells for CSV and Python: nothing rounded, each column of one type; an estimate is four columns: mean, low
    and high of the interval, and the number of runs.

    A column of settings that are all numbers holds numbers, and whole numbers where all are.
    """
    import pandas as pd

    parts = []
    for column in sheet.columns:
        cells = sheet.cells[column.name].reset_index(drop=True)
        if column.kind == "measure":
            found = [cell if isinstance(cell, Estimate) else Estimate() for cell in cells]
            heads = [f"{column.name}.{part}" for part in ("mean", "low", "high", "n")]
            spread = pd.DataFrame([(one.mean, *one.band, one.n) for one in found], columns=heads, dtype="float64")
            parts.append(spread.astype({heads[-1]: "int64"}))
        elif column.kind == "key":
            parts.append(typed_column(cells))
        else:
            parts.append(cells.astype("int64"))
    return pd.concat(parts, axis=1)


def sheet_csv(sheet: Sheet) -> str:
    """CSV with one line per row, unrounded; absent cells are empty, and no text is a formula in a spreadsheet."""
    exact = exact_frame(sheet).rename(columns=escape_csv)
    escaped = exact.apply(lambda cells: cells.map(escape_csv, "ignore") if cells.dtype == object else cells)
    return str(escaped.to_csv(index=False, lineterminator="\n"))


FORMS: dict[str, Callable[[Sheet], str]] = {"csv": sheet_csv, "md": sheet_markdown, "tex": sheet_latex}


def form_of(path: Path) -> str:
    """The ending of ``path``, one of :data:`FORMS`. Raises :class:`UserError` for another."""
    ending = path.suffix.removeprefix(".")
    if ending not in FORMS:
        raise UserError(f"what form? FILE.csv, .tex or .md{nearest(ending, FORMS)}", f"--export={path}")
    return ending


def write(sheet: Sheet, path: Path) -> None:
    """Write ``sheet`` to ``path`` atomically, in the format of its suffix. Raises :class:`UserError`."""
    write_atomic(path, FORMS[form_of(path)](sheet))
