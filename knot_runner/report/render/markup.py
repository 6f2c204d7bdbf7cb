"""Markdown, LaTeX and CSV of tables, claims and comparisons."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.render.text import caption, cell_texts, escape_csv, escape_latex, escape_markdown
from knot_runner.util.config_yaml import PLAIN_NAME
from knot_runner.util.errors import UserError
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    from jinja2 import Environment


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[Any]], digits: int = 10) -> str:
    """Return CSV text with the column headings ``heads`` and the given rows.

    Texts are escaped, None becomes an empty cell, and floats have ``digits`` significant digits.
    """

    def cell(value: Any) -> Any:
        if isinstance(value, str):
            return escape_csv(value)
        if isinstance(value, float | np.floating):
            return f"{value:.{digits}g}"
        return value

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in (heads, *rows):
        writer.writerow(map(cell, row))
    return out.getvalue()


def write_forms(texts: Mapping[str, str], folder: Path, name: str) -> list[Path]:
    """Write one file per format, and return the paths of the files. Each file is written atomically.

    Args:
        texts: A dict from file suffix to content.
        folder: The folder of the files.
        name: The name of the files without suffix.

    Raises:
        UserError: ``name`` is not a valid file name, or a file cannot be written.
    """
    if not re.fullmatch(PLAIN_NAME, name):
        raise UserError(
            f"{name!r} is not a valid file name. Use only letters, digits, '_', '-' and '.'. No folder or file name "
            "may begin with '-' or '.'"
        )
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{name}.{ending}")
        write_atomic(paths[-1], text)
    return paths


CSV_NUMBERS = ("mean", "low", "high", "std", "seeds", "planned", "diverged", "paper", "paper_std", "gap")


def table_markdown(table: ResultTable) -> str:
    """Return ``table`` as GitHub Markdown: one Markdown table for each grid, followed by the footnotes as a list."""
    return _environment().get_template("table.md.j2").render(table=table)


def table_latex(table: ResultTable) -> str:
    """Return ``table`` as LaTeX for booktabs: one ``tabular`` for each grid, followed by the footnotes."""
    return _environment().get_template("table.tex.j2").render(table=table)


@functools.cache
def _environment() -> Environment:
    """Return the environment of the templates, whose tags ``<% %>`` and ``<< >>`` do not occur in LaTeX."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>",
        loader=PackageLoader("knot_runner.report.render", "."), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"md": escape_markdown, "tex": escape_latex}
    environment.globals |= {"caption": caption, "cell_texts": cell_texts}
    return environment


def table_csv(table: ResultTable) -> str:
    """Return ``table`` as CSV with one line per cell. A missing number becomes an empty field.

    The columns are:

    - the columns that identify the row, such as the method
    - ``column``, ``metric``: the names of the cell's column and metric
    - ``mean``, ``low``, ``high``, ``std``: our mean, the ends of its 95% interval, and the standard deviation
    - ``seeds``, ``planned``, ``diverged``: the counts of averaged, planned and diverged seeds
    - ``paper``, ``paper_std``: the paper's value and its standard deviation
    - ``gap``: our mean minus the paper's value
    """
    rows = []
    for row in table.rows:
        for group in table.groups:
            for column, cell in zip(group.columns, row.cells[group.key], strict=True):
                low, high = cell.band
                values = vars(cell) | {"low": low, "high": high, "seeds": cell.n}
                numbers = (values[name] for name in CSV_NUMBERS)
                rounded = [number if number is None else np.round(number, 6) for number in numbers]
                rows.append([*row.keys, column, group.metric or group.key, *rounded])
    return csv_text([*table.heads, "column", "metric", *CSV_NUMBERS], rows)


def write_table(table: ResultTable, folder: Path, name: str) -> list[Path]:
    """Write ``table`` as Markdown, CSV and LaTeX into ``folder``; return the paths of the files.

    ``name`` is the name of the files without suffix.

    Raises:
        UserError: ``name`` is not a valid file name, or a file cannot be written.
    """
    texts = {"md": table_markdown(table), "csv": table_csv(table), "tex": table_latex(table)}
    return write_forms(texts, folder, name)
