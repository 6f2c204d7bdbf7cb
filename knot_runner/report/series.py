"""Mean and 95% interval of a quantity over seeds, at each position on an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from knot_runner.report.statistics.intervals import mean_interval

if TYPE_CHECKING:
    import pandas as pd


def estimates(
    points: pd.DataFrame, names: Sequence[str], place: str = "place", everywhere: bool = True
) -> pd.DataFrame:
    """Return means over seeds and their 95% t intervals.

    A series is a group of runs, such as the runs of one curve. Each series has a mean at each position on the x axis.

    Args:
        points: A frame with one row per value. Its columns are ``seed``, ``value``, those in ``names``, and the column
            with the position. Values with the same series, seed and position are averaged.
        names: The names of the columns whose values identify a series.
        place: The name of the column with the position on the x axis.
        everywhere: If true, a position of a series is dropped if another position of the series has more seeds.

    Returns:
        A frame with one row per series and position, sorted by position within each series. Its columns are those in
        ``names``, the column with the position, and:

        - ``value``: the mean
        - ``low``, ``high``: the ends of the interval; for one seed, both ends equal the mean
        - ``n``: the number of seeds
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
