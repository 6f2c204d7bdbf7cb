"""Formats a table as Markdown, CSV and LaTeX, and writes the files atomically."""

from __future__ import annotations

from pathlib import Path

from knot_runner.report.render.markup import TextGrid, csv_text, latex_document, markdown_document, write_forms
from knot_runner.report.render.table_model import ResultTable, block_title
from knot_runner.report.render.text import caption, half_text, paper_text, value_text

CSV_NUMBERS = ("mean", "low", "high", "seeds", "planned", "diverged", "paper", "gap")
CSV_SPREADS = ("std", "paper_std")
#: Kind of table -> CSV head of the column that names columns; data sets by default, none for locals.
COLUMN_HEADS = {"temperatures": ("case",), "trace": ("column",), "clustered": ("column",), "locals": ()}


def table_markdown(table: ResultTable) -> str:
    """GitHub Markdown: one table per group of columns, then the lines as a list."""
    return markdown_document(table.title, _grids(table), (caption(table), *table.lines))


def table_latex(table: ResultTable) -> str:
    """A ``table`` environment for booktabs: one tabular per group of columns, then the lines."""
    return latex_document(table.title, _grids(table), (caption(table), *table.lines))


def _grids(table: ResultTable) -> list[TextGrid]:
    """The table's blocks as printed."""
    grids = []
    for groups in table.blocks():
        columns = [(group, i) for group in groups for i in range(len(group.columns))]
        names = [group.heading(i) + " (global)" * (group.columns[i] in group.of_global) for group, i in columns]
        right = [False] * len(table.heads) + [True] * len(columns)
        rows = []
        for row in table.rows:
            cells = [(row.cells[group.key][i], group) for group, i in columns]
            rows.append([*row.heads, *((value_text(*one), half_text(*one), paper_text(*one)) for one in cells)])
        grids.append(TextGrid([*table.heads, *names], right, rows, block_title(groups)))
    return grids


def table_csv(table: ResultTable) -> str:
    """One line per row and column: names, then mean, low and high of the 95% interval, seeds, paper, gap.

    Absent numbers are empty; ``seeds`` of ``planned`` runs finished with this number, ``diverged`` ones diverged.
    Clustered tables also have standard deviations: the paper's and that of a mean over rows.
    """
    named = COLUMN_HEADS.get(table.kind, ("data set",))
    numbers = (*CSV_NUMBERS, *CSV_SPREADS) if table.kind == "clustered" else CSV_NUMBERS
    rows = []
    for row in table.rows:
        for group in table.groups:
            for column, cell in zip(group.columns, row.cells[group.key], strict=True):
                names = (column, group.metric or group.key) if named else (column,)
                low, high = cell.band or (None, None)
                values = vars(cell) | {"low": low, "high": high}
                rows.append([*row.keys, *names, *(_rounded(values[number]) for number in numbers)])
    return csv_text([*table.heads, *named, "metric", *numbers], rows)


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value


def write_table(table: ResultTable, folder: Path, name: str) -> list[Path]:
    """Write ``name``.md, .csv and .tex into ``folder``; return the paths. Raises as :func:`write_forms`."""
    texts = {"md": table_markdown(table), "csv": table_csv(table), "tex": table_latex(table)}
    return write_forms(texts, folder, name)
