"""A quantity along an axis, with the mean and 95% interval over seeds, and the CSV file of a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from knot_runner.report.render.markup import csv_text
from knot_runner.report.statistics.intervals import mean_interval

if TYPE_CHECKING:
    import pandas as pd

#: The names of a band, such as case, method and quantity.
Names = TypeVar("Names", bound=tuple[str, ...])


class Band(NamedTuple):
    """A mean over seeds along an axis.

    Attributes:
        places: Positions [R] on the axis (rounds, sizes, ...).
        mean: The mean [R] over runs.
        low, high: The bounds [R] of the 95% t interval, which has width 0 for one seed.
        seeds: The number of runs [R] in each mean.
    """

    places: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: np.ndarray


def band(series: Iterable[Mapping[float, float]]) -> Band:
    """Return the band of several runs, each a dict from place to value, at the places where all runs have a value."""
    import pandas as pd

    return _band(pd.DataFrame(list(series)).dropna(axis=1))


def bands_of(points: Iterable[tuple[Names, int, float, float]], everywhere: bool = True) -> dict[Names, Band]:
    """Return a dict from names to the band of the values in ``points`` (names, seed, place, value).

    Values with the same seed and place are averaged. A band has the places where all seeds have a value or, without
    ``everywhere``, where at least one seed has a value.
    """
    import pandas as pd

    frame = pd.DataFrame(points, columns=["names", "seed", "place", "value"])
    bands = {}
    for names, rows in frame.groupby("names", sort=False):
        values = rows.groupby(["seed", "place"])["value"].mean().unstack()
        bands[names] = _band(values.dropna(axis=1) if everywhere else values)
    return bands


def _band(values: pd.DataFrame) -> Band:
    """Return the band of ``values``, with a row per run and a column per place."""
    values = values.sort_index(axis=1)
    estimates = [mean_interval(of_place.dropna().tolist()) for _, of_place in values.items()]
    mean = np.array([center for center, _ in estimates])
    half = np.array([half or 0.0 for _, half in estimates])
    return Band(values.columns.to_numpy(), mean, mean - half, mean + half, values.count().to_numpy())


def band_numbers(heads: Sequence[str], bands: Mapping[Names, Band]) -> str:
    """Return CSV with a row per place of ``bands``. ``heads`` are the headings of the names and the place.

    The other columns are mean, low, high and seeds.
    """
    rows = [(*names, *values) for names, line in bands.items() for values in zip(*line, strict=True)]
    return csv_text((*heads, "mean", "low", "high", "seeds"), rows, digits=6)
