"""Kinds of tables. A kind consists of a function that builds a table, and of the options of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from knot_runner.report.paper_tables import PrintedTable
from knot_runner.report.render.table_model import Parts, TableCell, TableLayout
from knot_runner.report.run_folders import Run
from knot_runner.report.statistics.intervals import mean_interval
from knot_runner.util.config_yaml import Config

if TYPE_CHECKING:
    import pandas as pd


def aggregate(
    ours: Iterable[float | None],
    members: pd.DataFrame,
    paper: float | None = None,
    comparable: bool = True,
    top: float | None = None,
) -> TableCell:
    """Return a table cell with the mean over seeds, and with the paper's number for comparison.

    Args:
        ours: One value per run in the cell; None for a run without a value.
        members: The rows for the runs in the cell, from a frame that :func:`run_rows` returned.
        paper: The paper's number, or None.
        comparable: Whether our mean and the paper's number are comparable. If so, the cell also has the gap: our mean
            minus the paper's number.
        top: The largest possible value: 1 for fractions, 100 for percentages, None for other numbers.
    """
    measured = [value for value in ours if value is not None]
    planned = members.seed.nunique()
    diverged = members.seed[members.state == "diverged"].nunique()
    if not measured:
        return TableCell(planned=planned, diverged=diverged, paper=paper)
    mean, half = mean_interval(measured)
    gap = mean - paper if paper is not None and comparable else None
    return TableCell(mean, half, len(measured), top, planned, diverged, paper, gap)


@dataclass(frozen=True)
class TableRequest:
    """Inputs of the function that builds a table.

    Attributes:
        runs: All runs of the preset, finished or not.
        printed: The paper's table for comparison, or None.
        metrics: The metrics in the table, in order.
        options: The preset's section ``report:``.
    """

    runs: Sequence[Run]
    printed: PrintedTable | None
    metrics: Sequence[str]
    options: Config


@dataclass(frozen=True)
class TableKind:
    """A kind of table.

    Attributes:
        make: A function that returns the rows, the headings above the row names, the column groups, and the footnotes.
        metrics: A function that returns the names that ``report.metrics`` may contain; None accepts every name.
        usual: The default metrics.
        printed: Tables of this kind can be compared only with a paper's table whose kind is ``printed``. If "", no
            comparison is possible.
        needs: A paper's table that the error message suggests if ``report.paper`` is missing. If "", the key
            ``report.paper`` is optional.
        options: Additional keys that ``report:`` may have for this kind of table.
        layout: The layout in a terminal.
    """

    make: Callable[[TableRequest], Parts]
    metrics: Callable[[], Collection[str]] | None = None
    usual: Sequence[str] = ("f1", "sd")
    printed: str = ""
    needs: str = ""
    options: Sequence[str] = ()
    layout: TableLayout = TableLayout()
