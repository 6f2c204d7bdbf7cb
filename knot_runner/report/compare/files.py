"""Files of a comparison table: Markdown, LaTeX, and CSV without rounding."""

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
    """Return a comparison table as a frame without rounding.

    A measure with the key M has four columns: the mean ``M.mean``, the ends of the interval ``M.low`` and ``M.high``,
    and the number of runs ``M.n``. The other columns hold settings and counts of runs. A column of a setting is numeric
    if all its values are numbers.
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
    """Return a comparison as CSV text without rounding. Missing cells are empty.

    Texts are escaped, so that no spreadsheet reads a text as a formula.
    """
    exact = exact_frame(table).rename(columns=escape_csv)
    for name, cells in exact.select_dtypes(object).items():
        exact[name] = cells.map(escape_csv, "ignore")
    return str(exact.to_csv(index=False, lineterminator="\n"))


FORMS: dict[str, Callable[[ResultTable], str]] = {
    "csv": comparison_csv, "md": table_markdown, "tex": table_latex,
}  # fmt: skip


def form_of(path: Path) -> str:
    """Return the file ending of ``path``. It is one of :data:`FORMS`.

    Raises:
        UserError: The ending is unknown.
    """
    ending = path.suffix.removeprefix(".")
    if ending not in FORMS:
        raise UserError(f"unknown format{nearest(ending, FORMS)}", f"--export={path}")
    return ending


def write(table: ResultTable, path: Path) -> None:
    """Write ``table`` to ``path`` atomically. The ending of ``path`` determines the format.

    Raises:
        UserError: The ending is unknown, or the file cannot be written.
    """
    write_atomic(path, FORMS[form_of(path)](table))
