"""Files of a comparison table: a frame and CSV without rounding, and Markdown and LaTeX as for all tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from knot_runner.report.compare.settings import typed_column
from knot_runner.report.render.markup import table_latex, table_markdown
from knot_runner.report.render.table_model import ResultTable
from knot_runner.report.render.text import escape_csv
from knot_runner.util.errors import UserError, nearest
from knot_runner.util.files import write_atomic

if TYPE_CHECKING:
    import pandas as pd


def exact_frame(table: ResultTable) -> pd.DataFrame:
    """Return the cells of a comparison without rounding, with one type per column, for CSV and Python.

    An estimate has four columns: mean, low and high of the interval, and the number of runs. A column of settings or
    numbers of runs is numeric if all its values are numbers, and integer if all values are integers.
    """
    import pandas as pd

    parts: list[pd.DataFrame | pd.Series] = []
    for i, key in enumerate(table.keys):
        parts.append(typed_column(pd.Series([row.keys[i] for row in table.rows], name=key, dtype=object)))
    for group in table.groups:
        numbers = []
        for row in table.rows:
            cell = row.cells[group.key][0]
            numbers.append((cell.mean, *cell.band, cell.n))
        frame = pd.DataFrame(numbers, columns=["mean", "low", "high", "n"], dtype="float64")
        parts.append(frame.astype({"n": "int64"}).add_prefix(f"{group.key}."))
    return pd.concat(parts, axis=1)


def comparison_csv(table: ResultTable) -> str:
    """Return CSV text without rounding. Missing cells are empty, and no spreadsheet reads a text as a formula."""
    exact = exact_frame(table).rename(columns=escape_csv)
    for name, cells in exact.select_dtypes(object).items():
        exact[name] = cells.map(escape_csv, "ignore")
    return str(exact.to_csv(index=False, lineterminator="\n"))


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
