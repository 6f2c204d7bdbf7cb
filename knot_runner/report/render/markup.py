"""Tables as Markdown, LaTeX and CSV; the same functions format tables, claims and comparisons."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.render.text import caption, cell_texts, escape_csv, escape_latex, escape_markdown
from knot_runner.util.config_yaml import PLAIN_NAME
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

#: A cell as printed: a text, or our number, its interval and the paper's number.
CellText = str | tuple[str, str, str]


@dataclass(frozen=True)
class TextGrid:
    """A printed table.

    Attributes:
        right: For each column, whether its cells align right (numbers).
        title: The title above the table, or "".
    """

    heads: Sequence[str]
    right: Sequence[bool]
    rows: Sequence[Sequence[CellText]]
    title: str = ""


def markdown_document(title: str, grids: Iterable[TextGrid], lines: Iterable[str]) -> str:
    """Return GitHub Markdown: the ``grids``, then the ``lines`` as a list."""
    parts = [f"### {escape_markdown(title)}"]
    for grid in grids:
        rule = "|" + "".join("--:|" if right else "---|" for right in grid.right)
        head, *rows = [f"| {' | '.join(map(_markdown_cell, row))} |" for row in (grid.heads, *grid.rows)]
        if grid.title:
            parts.append(f"**{escape_markdown(grid.title)}**")
        parts.append("\n".join([head, rule, *rows]))
    parts.append("\n".join(f"- {escape_markdown(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _markdown_cell(cell: CellText) -> str:
    if isinstance(cell, str):
        return escape_markdown(cell)
    mean, half, paper = cell
    return escape_markdown(" ".join(filter(None, (mean + half, paper))))


def latex_document(title: str, grids: Iterable[TextGrid], lines: Iterable[str]) -> str:
    """Return a ``table`` environment for booktabs: a tabular for each of ``grids``, then the ``lines``."""
    parts = ["% needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}", "\\begin{table}[t]", "\\centering"]
    parts.append(f"\\caption{{{escape_latex(title)}}}")
    for grid in grids:
        layout = "".join("r" if right else "l" for right in grid.right)
        tabular = [f"\\begin{{tabular}}{{{layout}}}", "\\toprule"]
        if grid.title:
            tabular.insert(0, "\\par\\smallskip")
            tabular.append(f"\\multicolumn{{{len(layout)}}}{{l}}{{\\emph{{{escape_latex(grid.title)}}}}} \\\\")
        head, *rows = [" & ".join(map(_latex_cell, row)) + " \\\\" for row in (grid.heads, *grid.rows)]
        parts += [*tabular, head, "\\midrule", *rows, "\\bottomrule", "\\end{tabular}"]
    small = " ".join(map(escape_latex, lines))
    parts.append(f"\\par\\smallskip\\begin{{minipage}}{{\\linewidth}}\\footnotesize {small}\\end{{minipage}}")
    return "\n".join([*parts, "\\end{table}"]) + "\n"


def _latex_cell(cell: CellText) -> str:
    if isinstance(cell, str):
        return escape_latex(cell)
    mean, half, paper = map(escape_latex, cell)
    text = mean + (f"{{\\scriptsize\\,{half.strip()}}}" if half else "")
    return text + (f" {{\\scriptsize {paper}}}" if paper else "")


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 10, decimals: int | None = None) -> str:
    """Return CSV with escaped texts and empty cells for None.

    Floats are rounded to ``decimals``, if given, and then printed with ``digits`` significant digits.
    """

    def cell(value: Any) -> Any:
        if isinstance(value, str):
            return escape_csv(value)
        if isinstance(value, float | np.floating):
            rounded = value if decimals is None else np.round(value, decimals)
            return f"{rounded:.{digits}g}"
        return value

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in (heads, *rows):
        writer.writerow([cell(value) for value in row])
    return out.getvalue()


def write_forms(texts: Mapping[str, str], folder: Path, name: str) -> list[Path]:
    """Write each of ``texts`` (suffix -> content) as ``name``.suffix below ``folder``, atomically; return the paths.

    Raises:
        UserError: The name is not a :data:`PLAIN_NAME`, or the folder cannot be written.
    """
    if not re.fullmatch(PLAIN_NAME, name):
        raise UserError(f"{name!r} is not a file name. Use letters, digits, '_', '-' and '.'")
    paths = [folder / f"{name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text)
    return paths


CSV_NUMBERS = ("mean", "low", "high", "std", "seeds", "planned", "diverged", "paper", "paper_std", "gap")


def table_markdown(table: ResultTable) -> str:
    """Return GitHub Markdown: one table per group of columns, then the lines as a list."""
    return markdown_document(table.title, _grids(table), (caption(table), *table.lines))


def table_latex(table: ResultTable) -> str:
    """Return a ``table`` environment for booktabs: one tabular per group of columns, then the lines."""
    return latex_document(table.title, _grids(table), (caption(table), *table.lines))


def _grids(table: ResultTable) -> list[TextGrid]:
    """Return the blocks of the table as printed."""
    grids = []
    for groups in table.blocks():
        heads = list(table.heads)
        rows: list[list[CellText]] = [list(row.heads) for row in table.rows]
        for group in groups:
            for i, column in enumerate(group.columns):
                heads.append(group.heading(i) + (" (global)" if column in group.of_global else ""))
            for row, texts in zip(table.rows, rows, strict=True):
                texts += [cell_texts(cell, group) for cell in row.cells[group.key]]
        right = [*(table.right or [False] * len(table.heads)), *[True] * (len(heads) - len(table.heads))]
        grids.append(TextGrid(heads, right, rows, table.block_title(groups)))
    return grids


def table_csv(table: ResultTable) -> str:
    """Return one line per row and column: names, mean, low and high of the 95% interval, deviation, seeds, paper, gap.

    Missing numbers are empty. Of the ``planned`` runs, ``seeds`` runs have the number and ``diverged`` runs diverged.
    """
    rows = []
    for row in table.rows:
        for group in table.groups:
            for column, cell in zip(group.columns, row.cells[group.key], strict=True):
                low, high = cell.band
                values = vars(cell) | {"low": low, "high": high, "seeds": cell.n}
                rows.append([*row.keys, column, group.metric or group.key, *(values[name] for name in CSV_NUMBERS)])
    return csv_text([*table.heads, "column", "metric", *CSV_NUMBERS], rows, decimals=6)


def write_table(table: ResultTable, folder: Path, name: str) -> list[Path]:
    """Write ``name``.md, .csv and .tex into ``folder``; return the paths. Raises the errors of :func:`write_forms`."""
    texts = {"md": table_markdown(table), "csv": table_csv(table), "tex": table_latex(table)}
    return write_forms(texts, folder, name)
