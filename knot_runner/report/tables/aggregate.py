"""Aggregates runs to one number of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from knot_runner.report.render.table_model import TableCell
from knot_runner.report.statistics.intervals import mean_interval

if TYPE_CHECKING:
    import pandas as pd


def aggregate(
    ours: Iterable[float | None],
    members: pd.DataFrame,
    paper: float | None = None,
    comparable: bool = True,
    top: float | None = None,
) -> TableCell:
    """The mean of ``ours`` (None: not measured) over the seeds of ``members`` (rows as in :func:`run_rows`), beside the
    ``paper``'s number; the gap to it is given only if the two are ``comparable``; ``top``: maximum of a share, 1 or
    100."""
    values = [value for value in ours if value is not None]
    planned = len(set(members["seed"]))
    diverged = len({run.job.seed for run in members["run"] if run.status == "diverged"})
    if not values:
        return TableCell(planned=planned, diverged=diverged, paper=paper)
    mean, half = mean_interval(values)
    gap = mean - paper if paper is not None and comparable else None
    ids = tuple(dict.fromkeys(run.job.run_id for run in members["run"] if run.result))
    return TableCell(mean, half, len(values), planned, diverged, paper, gap, top=top, runs=ids)
