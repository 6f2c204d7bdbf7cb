"""Mean and 95% interval of a quantity over runs, at each position of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from knot_runner.report.statistics.intervals import mean_interval

if TYPE_CHECKING:
    import pandas as pd


def estimates(
    points: pd.DataFrame, names: Sequence[str], place: str = "place", everywhere: bool = True
) -> pd.DataFrame:
    """Return a row per series and place (axis position): the mean ``value`` over ``n`` seeds and its 95% t interval.

    The interval is from ``low`` to ``high``; for one seed, its width is 0. Series are in the order of ``points``, and
    places are sorted.

    Args:
        points: One row per value, with the columns ``names``, ``place``, ``seed`` and ``value``. Values with the same
            seed and place are averaged.
        names: Columns that identify a series.
        place: The column with positions on the axis.
        everywhere: Whether to drop, in each series, the places with fewer seeds than another place of the series.
    """
    import pandas as pd

    rows = []
    for name, of_series in points.groupby(list(names), observed=True, sort=False):
        by_seed = of_series.groupby([place, "seed"], observed=True).value.mean().unstack("seed")
        most = by_seed.count(axis=1).max()
        for at, values in by_seed.iterrows():
            present = values.dropna().tolist()
            mean, half = mean_interval(present)
            if len(present) == most or not everywhere:
                rows.append((*name, at, mean, mean - (half or 0.0), mean + (half or 0.0), len(present)))
    return pd.DataFrame(rows, columns=[*names, place, "value", "low", "high", "n"])
