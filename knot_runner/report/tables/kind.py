"""A kind of table: the function that builds it, and its valid options."""

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
    """Return the cell with the mean of ``ours`` over seeds, next to the ``paper``'s number.

    ``members`` are the runs of the cell, as rows of :func:`run_rows`. ``ours`` has their numbers, with None for a run
    without the number. The gap (our mean minus the paper's number) is set only if both are ``comparable``. ``top`` is
    the maximum of a share, 1 or 100.
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
    """Inputs of a table.

    Attributes:
        runs: The finished and unfinished runs of the preset.
        printed: The paper's table to show next to ours, or None.
        metrics: The metrics in the table, in order.
        options: The preset's ``report:``.
    """

    runs: Sequence[Run]
    printed: PrintedTable | None
    metrics: Sequence[str]
    options: Config


@dataclass(frozen=True)
class TableKind:
    """A kind of table.

    Attributes:
        make: A function that returns the rows, the headings of the row names, the groups of columns, and the footnotes.
        metrics: A function that returns the names that ``report.metrics`` may have; None accepts every name.
        usual: The default metrics.
        printed: The kind of the paper's table that can be shown next to ours, or "".
        needs: The name of a suitable printed table, if this kind takes rows or columns from a printed table; otherwise
            "".
        options: Further keys of ``report:`` in presets with this kind of table.
        layout: The layout in a terminal.
    """

    make: Callable[[TableRequest], Parts]
    metrics: Callable[[], Collection[str]] | None = None
    usual: Sequence[str] = ("f1", "sd")
    printed: str = ""
    needs: str = ""
    options: Sequence[str] = ()
    layout: TableLayout = TableLayout()
