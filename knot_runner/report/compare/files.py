"""Formats of a comparison table: terminal, exact frame and CSV.

Markdown and LaTeX are written by the functions for all tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from knot_runner.report.compare.settings import KEPT, as_number, typed_column
from knot_runner.report.render.markup import table_latex, table_markdown
from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.render.terminal import DIM, TerminalColumn, fits, results_grid, text_line
from knot_runner.report.render.text import caption, escape_csv, plain, value_text
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd

#: Key of the group of columns that count runs; each of the others is a measure.
COUNTS = "counts"
#: A column as printed, and its cells.
_Shown = tuple[TerminalColumn, list[str]]


@dataclass(frozen=True)
class TerminalComparison:
    """Rich renderable of a comparison for any width. Measures that do not fit move to further blocks."""

    table: ResultTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        lead = []
        for i, head in enumerate(table.heads):
            lead.append(_shown(head, [row.heads[i] for row in table.rows]))
        measures: list[_Shown] = []
        for group in table.groups:
            shown = lead if group.key == COUNTS else measures
            for i in range(len(group.columns)):
                texts = [value_text(row.cells[group.key][i], group) for row in table.rows]
                shown.append(_shown(group.heading(i), texts, right=True))
        if not fits(_grid([*lead, *measures[:1]]), console, options):
            lead = _joined(table, lead)
        blocks = [lead]
        for measure in measures:
            longer = [*blocks[-1], measure]
            if len(longer) > len(lead) + 1 and not fits(_grid(longer), console, options):
                blocks.append([*lead, measure])
            else:
                blocks[-1] = longer
        yield text_line(table.title, "bold")
        for block in blocks:
            yield from (text_line(""), _grid(block))
        yield text_line("")
        yield from (text_line(text, DIM) for text in (caption(table), *table.lines))


def _shown(head: str, texts: list[str], right: bool = False) -> _Shown:
    cells = [plain(text) for text in texts]
    name, space, unit = plain(head).partition(" (")
    right = right or all(as_number(text) is not None for text in cells if text)
    return TerminalColumn(Text(name.replace(".", "\n") + space + unit), right, no_wrap=True, overflow="fold"), cells


def _joined(table: ResultTable, lead: list[_Shown]) -> list[_Shown]:
    """Return the ``lead`` columns, with other settings merged into one column ``key=value``.

    The task, method and run id keep separate columns.
    """
    columns: list[_Shown] = []
    rest = []
    for name, head, (printed, cells) in zip(table.keys, table.heads, lead, strict=False):
        if name in (*KEPT, "run_id"):
            columns.append((printed, cells))
        else:
            rest.append([f"{plain(head)}={value}" if value else "" for value in cells])
    columns += lead[len(table.keys) :]
    if rest:
        before = next((i for i, (printed, _) in enumerate(columns) if printed.right), len(columns))
        joined = [" ".join(filter(None, row)) for row in zip(*rest, strict=True)]
        columns.insert(before, (TerminalColumn(Text("settings"), overflow="fold"), joined))
    return columns


def _grid(columns: list[_Shown]) -> Table:
    rows = zip(*(cells for _, cells in columns), strict=True)
    return results_grid([printed for printed, _ in columns], rows, head_style=DIM)


def exact_frame(table: ResultTable) -> pd.DataFrame:
    """Return the cells for CSV and Python, without rounding, and with one type per column.

    An estimate has four columns: mean, low and high of the interval, and the number of runs. A column of settings is
    numeric if all its values are numbers, and integer if all values are integers.
    """
    import pandas as pd

    parts: list[pd.DataFrame | pd.Series] = []
    for i, key in enumerate(table.keys):
        parts.append(typed_column(pd.Series([row.keys[i] for row in table.rows], name=key, dtype=object)))
    for group in table.groups:
        for i, column in enumerate(group.columns):
            cells = [row.cells[group.key][i] for row in table.rows]
            count = pd.Series([cell.n for cell in cells], dtype="int64")
            if group.key == COUNTS:
                parts.append(count.rename(column))
                continue
            numbers = [(cell.mean, *cell.band) for cell in cells]
            parts.append(pd.DataFrame(numbers, columns=["mean", "low", "high"], dtype="float64").assign(n=count))
            parts[-1] = parts[-1].add_prefix(f"{group.key}.")
    return pd.concat(parts, axis=1)


def comparison_csv(table: ResultTable) -> str:
    """Return CSV text without rounding. Missing cells are empty, and no spreadsheet reads a text as a formula."""
    exact = exact_frame(table).rename(columns=escape_csv)
    escaped = exact.apply(lambda cells: cells.map(escape_csv, "ignore") if cells.dtype == object else cells)
    return str(escaped.to_csv(index=False, lineterminator="\n"))


FORMS: dict[str, Callable[[ResultTable], str]] = {
    "csv": comparison_csv, "md": table_markdown, "tex": table_latex,
}  # fmt: skip


def form_of(path: Path) -> str:
    """Return the file ending of ``path``, one of :data:`FORMS`.

    Raises:
        UserError: ``path`` has another ending.
    """
    ending = path.suffix.removeprefix(".")
    if ending not in FORMS:
        raise UserError(f"unknown format{nearest(ending, FORMS)}", f"--export={path}")
    return ending


def write(table: ResultTable, path: Path) -> None:
    """Write ``table`` to ``path`` atomically, in the format of its suffix. Raises :class:`UserError`."""
    write_atomic(path, FORMS[form_of(path)](table))
