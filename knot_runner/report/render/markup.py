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
    """Return CSV with escaped texts, empty cells for None, and floats with ``digits`` significant digits."""

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
    """Write each of ``texts`` (suffix -> content) as ``name``.suffix below ``folder``, atomically; return the paths.

    Raises:
        UserError: The name is not a :data:`PLAIN_NAME`, or the folder cannot be written.
    """
    if not re.fullmatch(PLAIN_NAME, name):
        raise UserError(
            f"{name!r} is not a valid file name. Use only letters, digits, '_', '-' and '.', and begin every part with "
            "a letter, a digit or '_'"
        )
    paths = []
    for ending, text in texts.items():
        paths.append(folder / f"{name}.{ending}")
        write_atomic(paths[-1], text)
    return paths


CSV_NUMBERS = ("mean", "low", "high", "std", "seeds", "planned", "diverged", "paper", "paper_std", "gap")


def table_markdown(table: ResultTable) -> str:
    """Return GitHub Markdown: one table per group of columns, then the lines as a list."""
    return _environment().get_template("table.md.j2").render(table=table)


def table_latex(table: ResultTable) -> str:
    """Return a ``table`` environment for booktabs: one tabular per group of columns, then the lines."""
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
    """Return CSV with one line per cell of the table.

    A line has the names of row and column, the mean, both ends of the 95% interval, the standard deviation, the numbers
    of seeds, the paper's number, and the gap (our mean minus the paper's number).

    Missing numbers are empty. ``planned`` is the number of requested runs, ``seeds`` the number of runs in the mean,
    and ``diverged`` the number of diverged runs.
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
    """Write ``name``.md, .csv and .tex into ``folder``; return the paths. Raises the errors of :func:`write_forms`."""
    texts = {"md": table_markdown(table), "csv": table_csv(table), "tex": table_latex(table)}
    return write_forms(texts, folder, name)
