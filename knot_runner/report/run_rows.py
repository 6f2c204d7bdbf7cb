"""Runs as rows of a frame, of which tables, figures and claims select, group and average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from knot_runner.report.run_folders import Run

if TYPE_CHECKING:  # pandas takes half a second to import
    import pandas as pd


def run_rows(runs: Iterable[Run]) -> pd.DataFrame:
    """A row per run, in their order: ``task``, ``method``, ``label``, ``seed``, ``run_id``, ``status``, ``run``."""
    import pandas as pd

    columns = ["task", "method", "label", "seed", "run_id", "status", "run"]
    found = [(*(getattr(run.job, name) for name in columns[:5]), run.status, run) for run in runs]
    return pd.DataFrame(found, columns=columns, dtype=object)


def one_per_seed(rows: pd.DataFrame, place: Sequence[str], named: Callable[[Any], str]) -> pd.DataFrame:
    """``rows`` with one run for each seed and value of the columns ``place``: one that is asked for twice counts once.

    Raises ValueError for two unlike runs; ``named``: what to call the place of a row.
    """
    keys = [*place, "seed"]
    shared = rows.groupby(keys, sort=False)["run_id"].transform("nunique") > 1
    if shared.any():
        first = rows[shared].iloc[0]
        raise ValueError(f"two runs share {named(first)} and seed {first.seed}")
    return rows.drop_duplicates(keys)
