"""Runs as rows of a frame, which tables, figures and claims filter, group and average."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from knot_runner.report.run_folders import Run

if TYPE_CHECKING:  # pandas takes half a second to import
    import pandas as pd


def run_rows(runs: Iterable[Run]) -> pd.DataFrame:
    """One row per run, in the given order: ``task``, ``method``, ``label``, ``seed``, ``run_id``, ``status``,
    ``run``."""
    import pandas as pd

    columns = ["task", "method", "label", "seed", "run_id", "status", "run"]
    found = [(*(getattr(run.job, name) for name in columns[:5]), run.status, run) for run in runs]
    return pd.DataFrame(found, columns=columns, dtype=object)


def one_per_seed(rows: pd.DataFrame, place: Sequence[str], named: Callable[[Any], str]) -> pd.DataFrame:
    """``rows`` with one run per seed and value of the columns ``place``; a run that is requested twice counts once.

    Raises ValueError for two different runs; ``named``: returns the name of a row's place for the error.
    """
    keys = [*place, "seed"]
    shared = rows.groupby(keys, sort=False)["run_id"].transform("nunique") > 1
    if shared.any():
        first = rows[shared].iloc[0]
        raise ValueError(f"two runs share {named(first)} and seed {first.seed}")
    return rows.drop_duplicates(keys)
