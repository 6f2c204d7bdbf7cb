"""A table in every form: terminal, Markdown, CSV, LaTeX; and the files, written whole or not at all."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from knot_runner.report.table_model import ColumnGroup, ResultTable, TableCell, block_title
from knot_runner.report.terminal import summary_table, terminal_table
from knot_runner.report.text import (
    caption,
    escape_csv,
    escape_latex,
    escape_markdown,
    half_text,
    paper_text,
    value_text,
)  # fmt: skip
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

__all__ = ["summary_table", "terminal_table", "table_csv", "table_latex", "table_markdown", "write_table"]

CSV_NUMBERS = ("mean", "low", "high", "seeds", "planned", "diverged", "paper", "gap")
CSV_SPREADS = ("std", "paper_std")


# ------------------------------------------------------------------------------------------------------------- formats


def table_markdown(table: ResultTable) -> str:
    """GitHub Markdown: one table per group of columns, then the lines as a list."""
    parts = [f"### {escape_markdown(table.title)}"]
    for groups in table.blocks():
        columns = [(group, i) for group in groups for i in range(len(group.columns))]
        heads = [*table.heads, *(_column_name(group, i) for group, i in columns)]
        grid = ["| " + " | ".join(map(escape_markdown, heads)) + " |"]
        grid.append("|" + "---|" * len(table.heads) + "--:|" * len(columns))
        for row in table.rows:
            cells = [_markdown_cell(row.cells[group.key][i], group) for group, i in columns]
            grid.append("| " + " | ".join([*map(escape_markdown, row.heads), *cells]) + " |")
        parts.append(f"**{escape_markdown(block_title(groups))}**\n\n" + "\n".join(grid))
    under = (caption(table), *table.lines)
    parts.append("\n".join(f"- {escape_markdown(line)}" for line in under))
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: TableCell, group: ColumnGroup) -> str:
    ours = escape_markdown(value_text(cell, group) + half_text(cell, group))
    return " ".join(filter(None, (ours, paper_text(cell, group))))


def table_csv(table: ResultTable) -> str:
    """One line per row and column: names, then mean, low and high of the 95% interval, seeds, paper, gap.

    Absent numbers are empty; ``seeds`` of ``planned`` runs finished with this number, ``diverged`` did not. Clustered:
    the standard deviations too, the paper's and that of a mean over rows.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    methods = table.kind != "locals"
    column_head = {"temperatures": "case", "trace": "column", "clustered": "column"}.get(table.kind, "data set")
    spreads = CSV_SPREADS if table.kind == "clustered" else ()
    writer.writerow([*table.heads, *((column_head,) if methods else ()), "metric", *CSV_NUMBERS, *spreads])
    for row in table.rows:
        for group in table.groups:
            for column, cell in zip(group.columns, row.cells[group.key], strict=True):
                names = (column, group.metric or group.key) if methods else (column,)
                extra = [_exact(getattr(cell, name)) for name in spreads]
                writer.writerow([*map(escape_csv, (*row.keys, *names)), *_csv_numbers(cell), *extra])
    return out.getvalue()


def _csv_numbers(cell: TableCell) -> list[str | int]:
    low, high = cell.band or (None, None)
    exact = [_exact(value) for value in (cell.mean, low, high)]
    return [*exact, cell.seeds, cell.planned, cell.diverged, _exact(cell.paper), _exact(cell.gap)]


def _exact(value: float | None) -> str:
    return "" if value is None else f"{round(value, 6):.10g}"


def table_latex(table: ResultTable) -> str:
    """A ``table`` environment for booktabs: one tabular per group of columns, then the lines."""
    parts = ["% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}", "\\begin{table}[t]", "\\centering"]
    parts.append(f"\\caption{{{escape_latex(table.title)}}}")
    for groups in table.blocks():
        parts += _latex_tabular(table, groups)
    under = (caption(table), *table.lines)
    small = " ".join(map(escape_latex, under))
    parts += [f"\\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {small}\\end{{minipage}}"]
    return "\n".join([*parts, "\\end{table}"]) + "\n"


def _latex_tabular(table: ResultTable, groups: Sequence[ColumnGroup]) -> list[str]:
    columns = [(group, i) for group in groups for i in range(len(group.columns))]
    heads = [*table.heads, *(_column_name(group, i) for group, i in columns)]
    first = f"\\multicolumn{{{len(heads)}}}{{l}}{{\\emph{{{escape_latex(block_title(groups))}}}}} \\\\"
    layout = "l" * len(table.heads) + "r" * len(columns)
    lines = ["\\par\\smallskip", f"\\begin{{tabular}}{{{layout}}}", "\\toprule", first]
    lines += [" & ".join(map(escape_latex, heads)) + " \\\\", "\\midrule"]
    for row in table.rows:
        cells = [_latex_cell(row.cells[group.key][i], group) for group, i in columns]
        lines.append(" & ".join([*map(escape_latex, row.heads), *cells]) + " \\\\")
    return [*lines, "\\bottomrule", "\\end{tabular}"]


def _latex_cell(cell: TableCell, group: ColumnGroup) -> str:
    mean, half, paper = value_text(cell, group), half_text(cell, group), paper_text(cell, group)
    text = escape_latex(mean) + (f"{{\\scriptsize\\,{escape_latex(half.strip())}}}" if half else "")
    return text + (f" {{\\scriptsize {escape_latex(paper)}}}" if paper else "")


def _column_name(group: ColumnGroup, i: int) -> str:
    return group.heading(i) + (" (global)" if group.roles[i] == "global" else "")


# --------------------------------------------------------------------------------------------------------------- files


def write_table(table: ResultTable, folder: Path, name: str) -> list[Path]:
    """Write ``name``.md, .csv and .tex into ``folder``, each whole or not at all; return the three paths.

    Raises :class:`UserError` for a name that is not a plain file name, and when the folder cannot be written.
    """
    if not re.fullmatch(r"[\w][\w.-]*", name):
        raise UserError(f"{name!r} is not a file name; letters, digits, '_', '-' and '.' are right")
    texts = {"md": table_markdown(table), "csv": table_csv(table), "tex": table_latex(table)}
    for ending, text in texts.items():
        write_atomic(folder / f"{name}.{ending}", text)
    return [folder / f"{name}.{ending}" for ending in texts]
